"""What the first rank of a split model does with its engine, told to the others, which do the same.

Every rank has the same engine. Nothing but its calls decides what an engine plans, so ranks that
make the same calls in the same order compute the same batches. Knows engines and what is written to
a pipe. Knows nothing of processes, nor of how a model is split.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias, assert_never

import msgspec
import numpy as np
import numpy.typing as npt

from omni_core.codec import Codec, Frame
from omni_core.engine.base import (
    Engine,
    EngineRequest,
    EngineStats,
    RequestFailedError,
    StepOutput,
)
from omni_core.errors import OmniError

_COUNT: Final = struct.Struct(">I")
"""How many frames an entry has, before the first of them."""


class Added(msgspec.Struct, frozen=True, tag=True):
    """`Engine.add`."""

    request: EngineRequest
    """Without its constraint, which the first rank alone keeps to."""
    constrained: bool = False
    """It has one."""


class Fed(msgspec.Struct, frozen=True, tag=True):
    """`Engine.feed`."""

    request_id: str
    chunk: Any


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """`Engine.abort`."""

    request_id: str


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """`Engine.step`."""


class Logging(msgspec.Struct, frozen=True, tag=True):
    """No call: what the first rank logs from here on."""

    level: int
    """The least, as Python's logging counts."""


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    """`Engine.forget_prefixes`."""


Entry: TypeAlias = Added | Fed | Aborted | Stepped | Logging | Forgotten


class Journal:
    """The writer's side: one pipe to each of the other ranks."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes
        self._codec = Codec()

    def encode(self, entry: Entry) -> list[Frame]:
        """The entry, for `write`; TypeError if it holds anything but plain data and tensors."""
        first, *others = self._codec.encode(entry)
        return [_COUNT.pack(1 + len(others)) + first, *others]

    def write(self, frames: Sequence[Frame]) -> None:
        """Tell the others; waits while one has much to read. OSError if one is gone."""
        for pipe in self._pipes:
            for frame in frames:
                pipe.send_bytes(frame)


def entries(pipe: Connection) -> Iterator[Entry]:
    """What is written to a pipe, until its writer closes it."""
    codec = Codec()
    with contextlib.suppress(EOFError):
        while True:
            first = pipe.recv_bytes()
            [count] = _COUNT.unpack_from(first)
            others = [pipe.recv_bytes() for _ in range(count - 1)]
            yield codec.decode([first[_COUNT.size :], *others], Entry)


class LeadingEngine:
    """`Engine` of the first rank: an engine whose calls are told to the others.

    So is the level of its process's log, before the next call: between calls they have nothing to
    log.
    """

    def __init__(
        self, engine: Engine, journal: Journal, cause: Callable[[Exception], Exception]
    ) -> None:
        """`cause` is given what ended a step, and says what to raise: with a rank that is gone,
        what the step says of it helps nobody."""
        self.capabilities = engine.capabilities
        self.max_running = engine.max_running
        self._engine = engine
        self._journal = journal
        self._cause = cause
        self._stepped = journal.encode(Stepped())
        self._log_level: int | None = None

    def session(self) -> AbstractContextManager[object]:
        """See `Engine`."""
        return self._engine.session()

    def add(self, request: EngineRequest) -> None:
        """See `Engine`; what is refused is nobody else's business."""
        plain = replace(request, constraint=None)
        frames = self._journal.encode(Added(plain, request.constraint is not None))
        self._engine.add(request)
        self._tell(frames)

    def feed(self, request_id: str, chunk: Any) -> None:
        """See `Engine`."""
        self._tell(self._journal.encode(Fed(request_id, chunk)))
        self._engine.feed(request_id, chunk)

    def runnable(self) -> bool:
        """See `Engine`."""
        return self._engine.runnable()

    def wakes_in_s(self) -> float | None:
        """See `Engine`."""
        return self._engine.wakes_in_s()

    def step(self) -> list[StepOutput]:
        """See `Engine`. The others are told first: the step waits for what they compute."""
        try:
            self._tell(self._stepped)
            return self._engine.step()
        except (RuntimeError, OSError) as exc:
            raise self._cause(exc) from exc

    def abort(self, request_id: str) -> None:
        """See `Engine`."""
        self._tell(self._journal.encode(Aborted(request_id)))
        self._engine.abort(request_id)

    def forget_prefixes(self) -> None:
        """See `Engine`."""
        self._tell(self._journal.encode(Forgotten()))
        self._engine.forget_prefixes()

    def stats(self) -> EngineStats:
        """See `Engine`."""
        return self._engine.stats()

    def _tell(self, frames: Sequence[Frame]) -> None:
        level = logging.getLogger().level
        if level != self._log_level:
            self._log_level = level
            self._journal.write(self._journal.encode(Logging(level)))
        self._journal.write(frames)


class KeptElsewhere:
    """`TokenConstraint` of a rank after the first: all may come, and what the first one draws does.
    That there is one tells the engine not to look ahead, as there."""

    error: OmniError | None = None

    def __init__(self, vocab_size: int) -> None:
        self._all = np.full((vocab_size + 31) // 32, -1, dtype=np.int32)

    def allowed(self, *, may_end: bool) -> npt.NDArray[np.int32]:
        """See `TokenConstraint`."""
        return self._all

    def advance(self, token: int) -> None:
        """See `TokenConstraint`."""


def follow(
    engine: Engine, told: Iterable[Entry], inputs: Callable[..., Any], vocab_size: int
) -> None:
    """Do with an engine what the first rank does with its own; `inputs` builds
    `EngineRequest.inputs` from its fields. What fails one request there fails it here."""
    with engine.session():
        for entry in told:
            match entry:
                case Added(request, constrained):
                    kept = KeptElsewhere(vocab_size) if constrained else None
                    mine = inputs(**request.inputs)
                    engine.add(replace(request, inputs=mine, constraint=kept))
                case Fed(request_id, chunk):
                    with contextlib.suppress(OmniError):
                        engine.feed(request_id, chunk)
                case Aborted(request_id):
                    engine.abort(request_id)
                case Stepped():
                    with contextlib.suppress(RequestFailedError):
                        engine.step()
                case Logging(level):
                    logging.getLogger().setLevel(level)
                case Forgotten():
                    engine.forget_prefixes()
                case _:
                    assert_never(entry)
