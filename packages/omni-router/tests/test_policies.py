"""Policies are pure: loads in, a place out."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from omni_router.routing.policies import POLICIES, Load, Turn, least_load, power_of_two

RANDOM = Random(1)


def chosen(name: str, loads: list[Load], turns: int) -> Counter[int]:
    random = Random(2)
    return Counter(POLICIES[name](loads, Turn(number, random)) for number in range(turns))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_candidate_is_chosen(name: str) -> None:
    assert chosen(name, [Load(7)], 5) == {0: 5}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_idle_workers_share_evenly(name: str) -> None:
    counts = chosen(name, [Load(0), Load(0), Load(0)], 3000)
    assert min(counts[place] for place in range(3)) > 850


def test_round_robin_takes_each_in_turn_whatever_its_load() -> None:
    loads = [Load(9), Load(0)]
    assert [POLICIES["round_robin"](loads, Turn(n, RANDOM)) for n in range(4)] == [0, 1, 0, 1]


def test_least_load_takes_the_least() -> None:
    assert least_load([Load(3), Load(1), Load(2)], Turn(0, RANDOM)) == 1


def test_least_load_weighs() -> None:
    assert least_load([Load(3, 4.0), Load(1, 1.0)], Turn(0, RANDOM)) == 0


def test_power_of_two_never_takes_the_worst() -> None:
    loads = [Load(5), Load(0), Load(9)]
    assert {power_of_two(loads, Turn(n, RANDOM)) for n in range(200)} == {0, 1}


def test_random_goes_by_weight() -> None:
    counts = chosen("random", [Load(0, 3.0), Load(0, 1.0)], 4000)
    assert 2800 < counts[0] < 3200
