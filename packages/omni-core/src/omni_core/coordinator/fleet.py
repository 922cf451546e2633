"""Which processes there are, in what state, and which of them a request gets.

Stages that share a process form a group; a group runs in one process, or in several replicas. A
process that dies has a successor with a name of its own ("voice", "voice@1", ...), so that nothing
meant for the dead one, or sent by it, is ever taken for the successor's. Pure books: knows no
operating system, socket or request.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from omni_core.errors import NotReadyError
from omni_core.graph import process_of, replica_names
from omni_core.specs import StageConfig

ProcessState: TypeAlias = Literal["starting", "built", "ready", "dead"]
"""Built: its stages are there, and take the warm-up request only."""
DeathCause: TypeAlias = Literal[
    "exit", "crash", "hang", "start_up_stall", "warm_up", "weights", "connection", "crash_loop"
]
"""Why a process is no more; a crash loop is an exit after several others."""


@dataclass(slots=True, eq=False)
class Replica:
    """One place of a group, and the process that fills it now."""

    name: str
    """Of the place and of its first process."""
    stages: tuple[StageConfig, ...]
    process: str
    state: ProcessState = "starting"
    restarts: int = 0
    last_death: DeathCause | None = None
    """Of the process before this one, or of this one if it is dead."""
    load: int = 0
    """Requests in flight that are pinned to the process."""
    turn: int = 0
    """When it was last given one; of those with as much to do, who has waited longest is next."""
    missing: set[str] = field(default_factory=set)
    """Stages that are not built yet."""

    def succeed(self) -> None:
        """A new process takes the place of a dead one."""
        self.restarts += 1
        self.process = f"{self.name}@{self.restarts}"
        self.state = "starting"
        self.load = 0
        self.missing = {stage.name for stage in self.stages}


class Fleet:
    """The processes of one pipeline."""

    def __init__(self, stages: Sequence[StageConfig]) -> None:
        self._group_of = {stage.name: process_of(stage) for stage in stages}
        self._groups: dict[str, list[Replica]] = {}
        self._turns = itertools.count(1)
        for group in dict.fromkeys(self._group_of.values()):
            members = tuple(stage for stage in stages if process_of(stage) == group)
            self._groups[group] = [
                Replica(name, members, name, missing={stage.name for stage in members})
                for name in replica_names(group, members[0].replicas)
            ]
        self.replicas = [replica for group in self._groups.values() for replica in group]
        self._by_process = {replica.process: replica for replica in self.replicas}
        self._split: dict[frozenset[str], dict[str, list[str]]] = {}

    @property
    def names(self) -> list[str]:
        """Of the places, whoever fills them."""
        return [replica.name for replica in self.replicas]

    def find(self, process: str) -> Replica | None:
        """The place that this process fills; None for one that has a successor, or never was."""
        return self._by_process.get(process)

    def of_stage(self, stage: str) -> list[Replica]:
        """Where a stage runs."""
        return self._groups[self._group_of[stage]]

    def number(self, replica: Replica) -> int:
        """Its place among the replicas of its group, from 0."""
        return self.of_stage(replica.stages[0].name).index(replica)

    def label(self, replica: Replica, stage: str) -> str:
        """What people call a stage there: "talker", and "talker.1" in the second replica."""
        number = self.number(replica)
        return f"{stage}.{number}" if number else stage

    def living(self) -> list[str]:
        """The processes that can be talked to."""
        return [replica.process for replica in self.replicas if replica.state != "dead"]

    def is_replaceable(self, replica: Replica) -> bool:
        """Whether another of its group serves, or may soon: it is in no crash loop itself."""
        group = self.of_stage(replica.stages[0].name)
        return any(
            other.state == "ready" or other.last_death != "crash_loop"
            for other in group
            if other is not replica
        )

    def down(self, stages: Iterable[str], *, warm_up: bool = False) -> list[str]:
        """The stages among these that no process takes a request for now."""
        by_group = self._by_group(stages)
        down = [members for group, members in by_group.items() if not self._able(group, warm_up)]
        return sorted(itertools.chain.from_iterable(down))

    def any_built(self, stages: Iterable[str]) -> bool:
        """Whether a warm-up request for these stages would be of use."""
        return any(r.state == "built" for stage in stages for r in self.of_stage(stage))

    def require(self, stages: Iterable[str], *, warm_up: bool = False) -> None:
        """NotReadyError unless `pin` would find a process for each of these."""
        if down := self.down(stages, warm_up=warm_up):
            raise NotReadyError(f"not ready: {', '.join(down)}; retry in a moment")

    def pin(self, stages: Collection[str], *, warm_up: bool = False) -> dict[str, str]:
        """{stage: process}, of each group the one with the least to do; NotReadyError if there is
        none. A warm-up request prefers processes that have not served yet."""
        chosen: list[tuple[Replica, list[str]]] = []
        for group, members in self._by_group(stages).items():
            able = self._able(group, warm_up)
            if not able:
                self.require(stages, warm_up=warm_up)
            chosen.append((able[0] if len(able) == 1 else min(able, key=_preference), members))
        for replica, _ in chosen:
            replica.load += 1
            replica.turn = next(self._turns)
        return {stage: replica.process for replica, members in chosen for stage in members}

    def unpin(self, pins: dict[str, str]) -> None:
        """The request has ended."""
        for process in set(pins.values()):
            if replica := self._by_process.get(process):
                replica.load -= 1

    def built(self, process: str, stage: str) -> bool:
        """A stage is there; whether it was the last of its process. Strangers change nothing."""
        replica = self._by_process.get(process)
        if replica is None or replica.state != "starting":
            return False
        replica.missing.discard(stage)
        if not replica.missing:
            replica.state = "built"
        return replica.state == "built"

    def warmed(self, pins: dict[str, str]) -> list[Replica]:
        """A warm-up request has passed these processes; those that serve from now on."""
        passed = [self._by_process.get(process) for process in dict.fromkeys(pins.values())]
        fresh = [replica for replica in passed if replica and replica.state == "built"]
        for replica in fresh:
            replica.state = "ready"
        return fresh

    def succeed(self, replica: Replica) -> None:
        """Give a dead process its successor's name."""
        del self._by_process[replica.process]
        replica.succeed()
        self._by_process[replica.process] = replica

    def _able(self, group: str, warm_up: bool) -> list[Replica]:
        """Those that take a request now."""
        return [
            replica
            for replica in self._groups[group]
            if replica.state == "ready" or (warm_up and replica.state == "built")
        ]

    def _by_group(self, stages: Iterable[str]) -> dict[str, list[str]]:
        """{group: those of the stages that are in it}; kept, since few sets are ever asked for."""
        asked = frozenset(stages)
        split = self._split.get(asked)
        if split is None:
            split = self._split[asked] = {}
            for stage in sorted(asked):
                split.setdefault(self._group_of[stage], []).append(stage)
        return split


def _preference(replica: Replica) -> tuple[bool, int, int]:
    return replica.state != "built", replica.load, replica.turn
