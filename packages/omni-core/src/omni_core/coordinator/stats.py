"""The counters of the stages, asked of their processes.

Knows questions and answers. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from omni_core.coordinator.fleet import Fleet
from omni_core.messages import StatsQuery, StatsReply

_TIMEOUT_S: Final = 5.0

Stats = dict[str, dict[str, float]]


@dataclass(slots=True)
class Numbers:
    """What the processes say."""

    stages: Stats = field(default_factory=dict)
    """{stage: counters}; the replicas of a stage are told apart: "talker", "talker.1"."""
    relays: Stats = field(default_factory=dict)
    """{process: counters of the tensors it sends and receives}."""


class StatsDesk:
    """Asks every process at once and waits for those that live."""

    def __init__(self, fleet: Fleet, send: Callable[[str, StatsQuery], None]) -> None:
        self._fleet = fleet
        self._send = send
        self._ids = itertools.count()
        self._open: dict[int, _Query] = {}

    async def ask(self) -> Numbers:
        """What those that answer in time say."""
        query_id = next(self._ids)
        asked = [replica.process for replica in self._fleet.replicas if replica.state == "ready"]
        query = self._open[query_id] = _Query(set(asked))
        for process in asked:
            self._send(process, StatsQuery(query_id=query_id))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await query.wait()
        except TimeoutError:
            pass  # a busy process is simply absent
        finally:
            del self._open[query_id]
        return query.found

    def answer(self, reply: StatsReply) -> None:
        """A process has answered."""
        query = self._open.get(reply.query_id)
        replica = self._fleet.find(reply.process)
        if query is not None and replica is not None:
            for stage, stats in reply.stats.items():
                query.found.stages[self._fleet.label(replica, stage)] = stats
            query.found.relays[replica.name] = reply.relay
            query.settle(reply.process)

    def forget(self, process: str) -> None:
        """A process has died: it will not answer."""
        for query in self._open.values():
            query.settle(process)


class _Query:
    def __init__(self, missing: set[str]) -> None:
        self._missing = missing
        self._all_there = asyncio.Event()
        self.found = Numbers()

    def settle(self, process: str) -> None:
        self._missing.discard(process)
        if not self._missing:
            self._all_there.set()

    async def wait(self) -> None:
        if self._missing:
            await self._all_there.wait()
