"""Policies: which of several workers that can answer a request gets it.

Pure functions. Each takes the loads of the candidates, which are at least one, and returns the
place of the chosen one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias

PolicyName: TypeAlias = Literal["least_load", "round_robin", "power_of_two", "random"]


@dataclass(frozen=True, slots=True)
class Load:
    """Of one candidate."""

    requests: int
    """It is likely to have."""
    weight: float = 1.0
    """Its share of the fleet beside the others'; less while it is new."""

    @property
    def cost(self) -> float:
        """What one request more makes of it."""
        return (self.requests + 1) / self.weight


@dataclass(frozen=True, slots=True)
class Turn:
    """What a choice may depend on beside loads."""

    number: int
    """Of choices before this one."""
    random: Random


Policy: TypeAlias = Callable[[Sequence[Load], Turn], int]


def least_load(loads: Sequence[Load], turn: Turn) -> int:
    """The one that costs least; of equals, each in turn."""
    least = min(load.cost for load in loads)
    equal = [place for place, load in enumerate(loads) if load.cost <= least * (1 + 1e-9)]
    return equal[turn.number % len(equal)]


def round_robin(loads: Sequence[Load], turn: Turn) -> int:
    """Each in turn, whatever it has to do."""
    return turn.number % len(loads)


def power_of_two(loads: Sequence[Load], turn: Turn) -> int:
    """The better of two drawn ones (Mitzenmacher, 2001): nearly as even as the best of all, and
    several routers that see the same loads do not all run to the same worker."""
    if len(loads) == 1:
        return 0
    one, other = turn.random.sample(range(len(loads)), 2)
    return one if loads[one].cost <= loads[other].cost else other


def random(loads: Sequence[Load], turn: Turn) -> int:
    """Any, by weight."""
    weights = [load.weight for load in loads]
    return turn.random.choices(range(len(loads)), weights)[0]


POLICIES: Final[Mapping[PolicyName, Policy]] = {
    "least_load": least_load,
    "round_robin": round_robin,
    "power_of_two": power_of_two,
    "random": random,
}
