"""The counters of the stages, asked of their processes.

Knows whom to ask and what counters are called. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omni_core.coordinator.desk import Desk
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


async def ask_numbers(fleet: Fleet, desk: Desk[StatsReply]) -> Numbers:
    """What those ready processes say that answer in time; a busy one is simply absent."""

    def question(query_id: int) -> StatsQuery:
        return StatsQuery(query_id=query_id)

    ready = [replica for replica in fleet.replicas if replica.state == "ready"]
    names = {replica.process: replica for replica in ready}
    numbers = Numbers()
    for process, reply in (await desk.ask(list(names), question, _TIMEOUT_S)).items():
        replica = names[process]
        for stage, counters in reply.stats.items():
            numbers.stages[fleet.label(replica, stage)] = counters
        numbers.relays[replica.name] = reply.relay
    return numbers
