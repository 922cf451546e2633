"""The state of a pipeline as operators see it.

Knows the fleet. Asks no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from omni_core.coordinator.fleet import DeathCause, Fleet, Replica

PipelineState: TypeAlias = Literal["starting", "ready", "degraded", "closing"]
StageState: TypeAlias = Literal["starting", "ready", "dead"]


class ReplicaHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One process."""

    pid: int
    """0 while there is none."""
    state: StageState
    restarts: int = 0
    last_death: DeathCause | msgspec.UnsetType = msgspec.UNSET
    """Why the process before this one is gone, or this one if it is dead; left out if none is."""


class StageHealth(ReplicaHealth, frozen=True, kw_only=True):
    """One stage. With replicas it is ready while one of them is, and `pid` is that one's."""

    replicas: dict[str, ReplicaHealth] | msgspec.UnsetType = msgspec.UNSET
    """By the names of their places; left out if there is one only."""

    @property
    def processes_ready(self) -> int:
        """How many of its processes take requests."""
        processes = [self] if self.replicas is msgspec.UNSET else self.replicas.values()
        return sum(process.state == "ready" for process in processes)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` only when every process is; `degraded` may still serve what has a ready process."""

    status: PipelineState
    stages: dict[str, StageHealth]


def stages_of(
    fleet: Fleet, names: Iterable[str], pid: Callable[[str], int]
) -> dict[str, StageHealth]:
    """The health of these stages; `pid` tells that of a process."""
    return {name: _stage(fleet.of_stage(name), pid) for name in names}


def _stage(replicas: list[Replica], pid: Callable[[str], int]) -> StageHealth:
    found = {
        replica.name: ReplicaHealth(
            pid=pid(replica.process),
            state=_told(replica),
            restarts=replica.restarts,
            last_death=replica.last_death or msgspec.UNSET,
        )
        for replica in replicas
    }
    best = min(found.values(), key=lambda health: _ORDER.index(health.state))
    return StageHealth(
        pid=best.pid,
        state=best.state,
        restarts=sum(health.restarts for health in found.values()),
        last_death=best.last_death,
        replicas=found if len(found) > 1 else msgspec.UNSET,
    )


_ORDER: list[StageState] = ["ready", "starting", "dead"]


def _told(replica: Replica) -> StageState:
    return "starting" if replica.state == "built" else replica.state
