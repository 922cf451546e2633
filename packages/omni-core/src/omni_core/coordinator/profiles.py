"""What the processes of a stage are doing, asked of them for a while.

Knows questions and answers. Knows nothing of what stacks mean.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final, TypeAlias

from omni_core.coordinator.fleet import Fleet
from omni_core.messages import Profile, ProfileReply

_GRACE_S: Final = 5.0

Stacks: TypeAlias = dict[str, int]
"""{"thread;outermost;...;innermost": how often it was seen}."""


class ProfileDesk:
    """Asks the ready processes of one stage at once, and waits for those that live."""

    def __init__(self, fleet: Fleet, send: Callable[[str, Profile], None]) -> None:
        self._fleet = fleet
        self._send = send
        self._ids = itertools.count()
        self._open: dict[tuple[int, str], asyncio.Future[Stacks]] = {}

    async def ask(self, stage: str, seconds: float) -> dict[str, Stacks]:
        """{process: its stacks}; one that dies or does not answer in time is left out."""
        query_id = next(self._ids)
        loop = asyncio.get_running_loop()
        ready = [r.process for r in self._fleet.of_stage(stage) if r.state == "ready"]
        waits = {process: loop.create_future() for process in ready}
        self._open |= {(query_id, process): wait for process, wait in waits.items()}
        try:
            for process in ready:
                self._send(process, Profile(query_id=query_id, seconds=seconds))
            if waits:
                await asyncio.wait(waits.values(), timeout=seconds + _GRACE_S)
            return {process: wait.result() for process, wait in waits.items() if wait.done()}
        finally:
            for process in ready:
                del self._open[query_id, process]

    def answer(self, reply: ProfileReply) -> None:
        """A process has answered; nobody may wait for it any more."""
        wait = self._open.get((reply.query_id, reply.process))
        if wait is not None and not wait.done():
            wait.set_result(reply.stacks)
