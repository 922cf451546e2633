"""A worker as the router knows it: where it is, what it can do, how it is, how much it has to do.

Knows no HTTP. Changed by `health`, `admission` and `admin`, on the event loop alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omni_router.needs import Needs


class WorkerState(StrEnum):
    """Whether requests are sent to a worker."""

    STARTING = "starting"
    """Not heard of yet."""
    READY = "ready"
    SUSPECT = "suspect"
    """It has just failed: it gets what no other can take, until it is known."""
    DOWN = "down"
    """It does not answer, or says that it is not ready."""
    DRAINING = "draining"
    """An operator takes it away: what it has ends, and nothing new comes."""
    HELD = "held"
    """Nobody knows which weights it has: an operator must say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One model of a worker, as GET /v1/models tells it."""

    model: str
    inputs: frozenset[str]
    outputs: frozenset[str]
    capabilities: frozenset[str]
    """Those that are true."""
    known_capabilities: frozenset[str]
    """Those it has a word about: a worker that says nothing of one may have it."""
    voices: frozenset[str]
    listed: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The model object itself."""

    def lacks(self, needs: Needs) -> str | None:
        """What it cannot do of a request for its model; None if it can all."""
        if needs.capability in self.known_capabilities - self.capabilities:
            return f"'{needs.capability}'"
        if missing := needs.inputs - self.inputs:
            return f"{', '.join(sorted(missing))} input"
        if missing := needs.outputs - self.outputs:
            return f"{', '.join(sorted(missing))} output"
        return None


@dataclass(slots=True, eq=False)
class Worker:
    """One of the fleet."""

    name: str
    url: str
    """Without a slash at its end."""
    max_in_flight: int
    weight: float = 1.0
    """More is more requests than others get."""
    state: WorkerState = WorkerState.STARTING
    why: str = "not heard of yet"
    """It is in this state; for operators."""
    abilities: tuple[Ability, ...] = ()
    epoch: int = 0
    """Lives of the process so far: what was learnt of one says nothing of the next."""
    started_at: float | None = None
    """What the process says of its start, by which the next one is told apart."""
    ready_since_s: float = 0.0
    """CLOCK_MONOTONIC."""
    in_flight: int = 0
    """Requests that this router has sent it and that have not ended."""
    reported: int = 0
    """Requests in its stages and its queue, of all routers, as it said last."""
    said: Mapping[str, float] = field(default_factory=dict)
    """{name: value} of its metrics, as it said last."""
    in_flight_then: int = 0
    """`in_flight` when it said so."""
    requests: int = 0
    """In all."""
    cuts: dict[object, Callable[[str], None]] = field(default_factory=dict)
    """How to break each exchange with it off; its client is told why."""

    @property
    def load(self) -> int:
        """Requests it is likely to have: what others sent, as last heard of, and ours."""
        return max(self.reported - self.in_flight_then, 0) + self.in_flight

    @property
    def is_full(self) -> bool:
        """Whether it may have no more requests of this router."""
        return self.in_flight >= self.max_in_flight

    def ability(self, model: str | None) -> Ability | None:
        """That of a model; of the only one if none is named."""
        if model is None:
            return self.abilities[0] if len(self.abilities) == 1 else None
        return next((ability for ability in self.abilities if ability.model == model), None)

    def become(self, state: WorkerState, why: str) -> bool:
        """Change; whether it did."""
        self.why = why
        if state is self.state:
            return False
        if state is WorkerState.READY and self.state is not WorkerState.SUSPECT:
            self.ready_since_s = time.monotonic()
        self.state = state
        return True

    def cut_all(self, why: str) -> int:
        """Break every exchange with it off; how many there were."""
        cuts = list(self.cuts.values())
        for cut in cuts:
            cut(why)
        return len(cuts)
