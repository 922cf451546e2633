"""One question to several processes, and their answers.

Knows who was asked and who has answered. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from omni_core.messages import ToStage


class Reply(Protocol):
    """What answers a question."""

    @property
    def query_id(self) -> int: ...
    @property
    def process(self) -> str: ...


R = TypeVar("R", bound=Reply)


class Desk(Generic[R]):
    """Asks at once, and waits for those that live. For one event loop."""

    def __init__(self, send: Callable[[str, ToStage], None]) -> None:
        self._send = send
        self._ids = itertools.count()
        self._open: dict[tuple[int, str], asyncio.Future[R | None]] = {}

    async def ask(
        self, processes: Sequence[str], question: Callable[[int], ToStage], timeout_s: float
    ) -> dict[str, R]:
        """{process: its answer}; one that dies or does not answer in time is left out. `question`
        makes the message that has this number."""
        query_id = next(self._ids)
        loop = asyncio.get_running_loop()
        waits: dict[str, asyncio.Future[R | None]] = {p: loop.create_future() for p in processes}
        self._open |= {(query_id, process): wait for process, wait in waits.items()}
        try:
            for process in processes:
                self._send(process, question(query_id))
            if waits:
                await asyncio.wait(waits.values(), timeout=timeout_s)
            found = {process: wait.result() for process, wait in waits.items() if wait.done()}
            return {process: reply for process, reply in found.items() if reply is not None}
        finally:
            for process in processes:
                del self._open[query_id, process]

    def answer(self, reply: R) -> None:
        """A process has answered; nobody may wait for it any more."""
        self._settle((reply.query_id, reply.process), reply)

    def forget(self, process: str) -> None:
        """A process has died: it will not answer."""
        for asked in [asked for asked in self._open if asked[1] == process]:
            self._settle(asked, None)

    def _settle(self, asked: tuple[int, str], reply: R | None) -> None:
        wait = self._open.get(asked)
        if wait is not None and not wait.done():
            wait.set_result(reply)
