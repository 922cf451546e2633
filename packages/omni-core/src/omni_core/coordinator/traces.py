"""Recordings of what torch does in stage processes: one at a time, bounded, a file for each.

Knows who records. Knows nothing of what is recorded.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from omni_core.coordinator.desk import Desk
from omni_core.coordinator.fleet import Fleet
from omni_core.errors import ConflictError, RequestError
from omni_core.messages import StartTrace, StopTrace, ToStage, TraceEnded, TraceStarted

START_LIMIT_S: Final = 60.0
"""The first recording of a process loads libraries."""
WRITE_LIMIT_S: Final = 300.0


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a recording."""

    stages: tuple[str, ...]
    file: str | None = None
    """None if there is none."""
    threads: dict[str, int] = {}
    """{name: number in the file}, once it is written."""
    reason: str | None = None
    """Why there is no file."""


class Traces:
    """The recordings of one pipeline."""

    def __init__(self, fleet: Fleet, send: Callable[[str, ToStage], None]) -> None:
        self.desk: Desk[TraceStarted] = Desk(send)
        """To be told of answers and of deaths."""
        self._fleet = fleet
        self._send = send
        self._numbers = itertools.count(1)
        self._recording: set[str] = set()
        self._found: dict[str, Traced] = {}
        self._over = asyncio.Event()

    async def start(
        self, directory: str, seconds: float, stages: Collection[str]
    ) -> dict[str, Traced]:
        """Record in the ready processes of these stages; {process: its file to be}. ConflictError
        while a recording is under way, RequestError if no process could begin."""
        if self._recording:
            raise ConflictError("a recording is under way already; stop it, or wait for its end")
        self._found = {
            replica.process: Traced(stages=tuple(stage.name for stage in replica.stages))
            for replica in self._fleet.replicas
            if replica.state == "ready" and any(stage.name in stages for stage in replica.stages)
        }
        self._recording = set(self._found)
        self._over.clear()
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{next(self._numbers)}"

        def question(query_id: int) -> StartTrace:
            return StartTrace(query_id=query_id, directory=directory, stamp=stamp, seconds=seconds)

        replies = await self.desk.ask(list(self._found), question, START_LIMIT_S)
        for process in self._found:
            self._began(process, replies.get(process))
        if all(traced.file is None for traced in self._found.values()):
            reasons = [f"{process}: {traced.reason}" for process, traced in self._found.items()]
            told = "; ".join(reasons) or "none of them is ready"
            raise RequestError(f"no process can record: {told}", param="stages")
        return dict(self._found)

    async def stop(self) -> dict[str, Traced]:
        """End the recording, and wait until its files are written; what the last one made.
        ConflictError if there was none."""
        if not self._found:
            raise ConflictError("nothing was recorded; start first")
        for process in self._recording:
            self._send(process, StopTrace())
        if self._recording:
            try:
                async with asyncio.timeout(WRITE_LIMIT_S):
                    await self._over.wait()
            except TimeoutError:
                for process in list(self._recording):
                    self._drop(process, "its file was not written in time")
        return dict(self._found)

    def ended(self, message: TraceEnded) -> None:
        """A process has written its file, or could not."""
        if message.process not in self._recording:
            return
        if message.error is not None:
            self._drop(message.process, message.error.message)
            return
        self._note(message.process, threads=message.threads)
        self._leave(message.process)

    def forget(self, process: str) -> None:
        """A process has died."""
        self.desk.forget(process)
        if process in self._recording:
            self._drop(process, "it has died")

    def _began(self, process: str, reply: TraceStarted | None) -> None:
        if reply is None:
            self._drop(process, "it has died, or has not answered in time")
        elif reply.error is not None:
            self._drop(process, reply.error.message)
        else:
            self._note(process, file=reply.file)

    def _drop(self, process: str, reason: str) -> None:
        self._note(process, file=None, reason=reason)
        self._leave(process)

    def _leave(self, process: str) -> None:
        self._recording.discard(process)
        if not self._recording:
            self._over.set()

    def _note(self, process: str, **what: object) -> None:
        self._found[process] = msgspec.structs.replace(self._found[process], **what)
