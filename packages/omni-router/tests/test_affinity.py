"""Rendezvous hashing with a bound on what it may give one worker."""

from __future__ import annotations

from collections import Counter

from omni_router.routing.affinity import preferred, ranked
from omni_router.routing.policies import Load

NAMES = [f"worker-{number}" for number in range(5)]
KEYS = [f"key {number}" for number in range(2000)]


def favourite(key: str, names: list[str]) -> str:
    return names[ranked(key, names)[0]]


def test_keys_spread_evenly() -> None:
    counts = Counter(favourite(key, NAMES) for key in KEYS)
    assert all(300 < counts[name] < 500 for name in NAMES)


def test_the_order_of_workers_does_not_matter() -> None:
    assert all(favourite(key, NAMES) == favourite(key, NAMES[::-1]) for key in KEYS)


def test_a_worker_that_goes_moves_only_its_own_keys() -> None:
    left = NAMES[1:]
    moved = [key for key in KEYS if favourite(key, NAMES) != favourite(key, left)]
    assert moved
    assert all(favourite(key, NAMES) == NAMES[0] for key in moved)


def test_an_idle_favourite_is_taken() -> None:
    loads = [Load(0)] * 5
    for key in KEYS[:50]:
        assert preferred(key, NAMES, loads, 1.0) == ranked(key, NAMES)[0]


def test_a_favourite_beyond_the_bound_is_passed_over_for_the_next() -> None:
    order = ranked("busy", NAMES)
    loads = [Load(4)] * 5
    loads[order[0]] = Load(12)
    assert preferred("busy", NAMES, loads, 1.5) == order[1]
    assert preferred("busy", NAMES, loads, 3.0) == order[0]


def test_no_worker_gets_more_than_its_share_times_the_imbalance() -> None:
    counts = [0] * 5
    for _ in range(1000):
        counts[preferred("the same key", NAMES, [Load(n) for n in counts], 1.5)] += 1
    assert max(counts) == 1.5 * 1000 / 5


def test_a_bound_below_one_request_still_finds_somebody() -> None:
    loads = [Load(3), Load(1), Load(2)]
    assert preferred("x", NAMES[:3], loads, 0.1) == 1
