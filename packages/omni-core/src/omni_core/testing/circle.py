"""A pipeline of four stages in two processes, by turns, that hand a large tensor along.

A process lends from one pool, whatever its stages: one that waits for room may wait for a reader
that waits for room itself, in the pool that the first has filled. For testing what carries tensors;
free of torch. A message of n characters comes back as the number n + 3.
"""

from __future__ import annotations

from types import ModuleType
from typing import assert_never

import msgspec
import numpy as np

from omni_core.hookspecs import hookimpl
from omni_core.plugins import Plugins
from omni_core.relay.lender import POOL_VARIABLE
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Outbox, Scheduler, Work
from omni_core.specs import PipelineConfig, Ref, StageConfig, StageContext
from omni_core.testing import echo
from omni_core.types import Message, TextDelta, TextPart

TENSOR_BYTES = 320 * 1024
"""Three of them fit into the smallest pool."""
NAMES = ("first", "second", "third", "fourth")


class Hop:
    """Adds one to a request's tensor, and hands it on or says what is in it."""

    def __init__(self, *, first: bool, last: bool) -> None:
        self._first = first
        self._last = last
        self._requests = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Until `Close`."""
        while True:
            match item := inbox.get():
                case Work():
                    self._requests += 1
                    self._hand_on(item, outbox)
                case Close():
                    return
                case Abort() | Chunk() | ChunksDone() | None:
                    pass
                case _:
                    assert_never(item)

    def stats(self) -> dict[str, float]:
        """See `Scheduler.stats`."""
        return {"requests": self._requests, "waiting": 0, "running": 0}

    def _hand_on(self, work: Work, outbox: Outbox) -> None:
        rid = work.request_id
        if self._first:
            [message] = msgspec.msgpack.decode(work.payload["messages"], type=tuple[Message, ...])
            text = "".join(part.text for part in message.content if isinstance(part, TextPart))
            tensor = np.full(TENSOR_BYTES // 8, len(text))
        else:
            tensor = work.payload["tensor"] + 1
        if self._last:
            [value] = set(tensor.tolist())
            outbox.emit(rid, TextDelta(text=str(value), token_ids=()))
            outbox.complete(rid)
        else:
            outbox.pass_on(rid, {"tensor": tensor})


def build(ctx: StageContext) -> Scheduler:
    """Factory of every stage."""
    return Hop(first=ctx.stage.name == NAMES[0], last=ctx.stage.name == NAMES[-1])


def plugins() -> Plugins:
    """A registry that holds the circle and nothing installed."""
    stages = tuple(
        StageConfig(
            name=name,
            factory=Ref(f"{__name__}:build"),
            process=("one", "other")[place % 2],
            next=NAMES[place + 1 : place + 2],
            terminal="text" if name == NAMES[-1] else None,
            env={POOL_VARIABLE: "1"},
        )
        for place, name in enumerate(NAMES)
    )
    pipeline = PipelineConfig(
        name="circle",
        architectures=("CircleForTests",),
        variants={"only": stages},
        default_variant="only",
        entry=NAMES[0],
        describe=echo.describe,
    )
    module = ModuleType("circle_plugin")
    register = hookimpl(specname="register_pipelines")(lambda: [pipeline])
    module.register_pipelines = register  # type: ignore[attr-defined]
    registry = Plugins()
    registry.register(module, "circle")
    return registry
