"""Stages of a checkpoint in this process, without a pipeline around them.

Knows how a stage is built and driven through its inbox and outbox. Knows nothing of its numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from omni_core.errors import OmniError
from omni_core.scheduler.base import Close, Inbox, Scheduler
from omni_core.specs import Ref, StageConfig, StageContext
from omni_core.types import Event, FinishReason, Payload, Usage
from omni_qwen3.pipeline import SPEECH_COLOCATED


def context(
    checkpoint: str, stage: str, *, compile: str = "off", options: Mapping[str, Any] | None = None
) -> StageContext:
    """What the factory of a stage of the speaking pipeline is told, on the CPU."""
    found = next(config for config in SPEECH_COLOCATED if config.name == stage)
    config = StageConfig(
        name=stage,
        factory=found.factory,
        next=found.next,
        stream_to=found.stream_to,
        options=options or {},
    )
    return StageContext(
        stage=config,
        model_path=checkpoint,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        compile=compile,
        report=lambda text: None,
    )


def build(ctx: StageContext) -> Scheduler:
    """The scheduler of a stage."""
    factory = ctx.stage.factory
    assert isinstance(factory, Ref)
    scheduler: Scheduler = factory.resolve()(ctx)
    return scheduler


@dataclass(slots=True)
class Listener:
    """An `Outbox` that notes when what came, and wakes who waits for it."""

    events: list[tuple[float, str, Any]] = field(default_factory=list)
    """(time.perf_counter, request id, streamed chunk or emitted event)."""
    ended: int = 0
    error: OmniError | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def send(self, request_id: str, payload: Payload, *, target: str | None = None) -> None:
        """See `Outbox.send`; nobody is there to take it."""

    def pass_on(self, request_id: str, payload: Payload) -> None:
        """See `Outbox.pass_on`."""
        self._end()

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        """See `Outbox.stream`."""
        self._note(request_id, data)

    def stream_done(self, request_id: str) -> None:
        """See `Outbox.stream_done`."""

    def emit(self, request_id: str, event: Event) -> None:
        """See `Outbox.emit`."""
        self._note(request_id, event)

    def done(self, request_id: str, usage: Usage | None = None) -> None:
        """See `Outbox.done`."""
        self._end()

    def complete(
        self, request_id: str, *, finish_reason: FinishReason = "stop", usage: Usage | None = None
    ) -> None:
        """See `Outbox.complete`."""
        self._end()

    def fail(self, request_id: str, error: OmniError) -> None:
        """See `Outbox.fail`; who waits is told."""
        self.error = error
        self._end()

    def released(self, request_id: str) -> None:
        """See `Outbox.released`; nothing is aborted here."""

    def wait_for_ends(self, count: int) -> None:
        """Until so many requests have ended in the stage; raises what one failed with."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended >= count)
        if self.error is not None:
            raise self.error

    def _note(self, request_id: str, data: Any) -> None:
        self.events.append((time.perf_counter(), request_id, data))

    def _end(self) -> None:
        with self._changed:
            self.ended += 1
            self._changed.notify_all()


@contextmanager
def running(scheduler: Scheduler) -> Iterator[tuple[Inbox, Listener]]:
    """The scheduler's loop in a thread of its own, until the end."""
    inbox, listener = Inbox(), Listener()
    thread = threading.Thread(target=scheduler.run, args=(inbox, listener), daemon=True)
    thread.start()
    try:
        yield inbox, listener
    finally:
        inbox.put(Close())
        thread.join()
