"""The processes of the ranks after the first: start them, and end with them.

Knows processes and pipes. Knows nothing of what a rank computes. A rank that is gone leaves the
others waiting for what it was to compute, and nothing can be done about that within a process: ours
ends, and whoever supervises it starts all of them again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from omni_core.engine.sglang_engine.split import Split
from omni_core.errors import StageDiedError
from omni_core.specs import Ref, StageConfig, StageContext

_GRACE_S: Final = 1.0
"""How long a step has to fail by itself, which names the stage, before the process ends."""
_SETTLE_S: Final = 1.0
"""A connection breaks a moment before its process can be waited for."""

log = logging.getLogger("omni.stage")


class Enlisted(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told before anything else: a `StageContext`, and which model it builds."""

    model: str
    rank: int
    ranks: int
    stage: str
    next: tuple[str, ...]
    memory_fraction: float | None
    options: dict[str, Any]
    model_path: str
    device: str
    dtype: str
    ar_engine: str

    @classmethod
    def of(cls, ctx: StageContext, model: Ref, rank: int) -> Enlisted:
        """For a rank after the first of the stage in `ctx`."""
        return cls(
            model=model.target,
            rank=rank,
            ranks=ctx.stage.tp_size,
            stage=ctx.stage.name,
            next=ctx.stage.next,
            memory_fraction=ctx.stage.memory_fraction,
            options=dict(ctx.stage.options),
            model_path=ctx.model_path,
            device=ctx.other_devices[rank - 1],
            dtype=ctx.dtype,
            ar_engine=ctx.ar_engine,
        )

    def context(self) -> StageContext:
        """The same in the process of the rank, which reports nothing."""
        return StageContext(
            stage=StageConfig(
                name=self.stage,
                factory=Ref(self.model),
                tp_size=self.ranks,
                next=self.next,
                memory_fraction=self.memory_fraction,
                options=self.options,
            ),
            model_path=self.model_path,
            device=self.device,
            dtype=self.dtype,
            ar_engine=self.ar_engine,
            report=lambda text: None,
        )


class Followers:
    """Of one stage. They leave when the pipes are closed, at the latest with this process."""

    def __init__(self, ctx: StageContext, model: Ref, meeting: int) -> None:
        """Start them; to be called in the main thread, with which they would die."""
        self._stage = ctx.stage.name
        self._lost: str | None = None
        self._loss = threading.Event()
        self.pipes: list[Connection] = []
        for rank in range(1, ctx.stage.tp_size):
            reader, writer = Pipe(duplex=False)
            process = _spawn(reader, meeting)
            reader.close()
            writer.send_bytes(msgspec.msgpack.encode(Enlisted.of(ctx, model, rank)))
            self.pipes.append(writer)
            watch = threading.Thread(target=self._watch, args=(rank, process), daemon=True)
            watch.start()

    def cause(self, error: Exception) -> Exception:
        """What is to blame for an error of the first rank: a rank that is gone, or itself."""
        self._loss.wait(_SETTLE_S)
        return error if self._lost is None else StageDiedError(self._lost)

    def close(self) -> None:
        """Let them leave."""
        for pipe in self.pipes:
            pipe.close()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if code == 0:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self._lost = (
            f"rank {rank} of stage {self._stage!r} {how}, and the other ranks cannot go on "
            "without it"
        )
        self._loss.set()
        log.error("%s", self._lost)
        time.sleep(_GRACE_S)
        os._exit(1)  # another thread may wait in a collective, which nothing interrupts


def _spawn(pipe: Connection, meeting: int) -> subprocess.Popen[bytes]:
    numbers = (pipe.fileno(), meeting, os.getpid())
    module = f"{__package__}.follower"
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        pass_fds=numbers[:2],
    )


def receive(pipe: Connection, meeting: int) -> tuple[Enlisted, Split]:
    """The first message on a rank's pipe."""
    enlisted = msgspec.msgpack.decode(pipe.recv_bytes(), type=Enlisted)
    return enlisted, Split(ranks=enlisted.ranks, rank=enlisted.rank, meeting=meeting)
