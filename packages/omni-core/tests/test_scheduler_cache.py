"""LRU and SharedResults: limits, who computes, and that nobody waits in vain."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from omni_core.errors import MediaError, OmniError
from omni_core.scheduler.cache import LRU, SharedResults

PATIENCE_S = 10.0


def lru(entries: int = 64, most_bytes: int | None = None) -> LRU[str]:
    return LRU(max_entries=entries, max_bytes=most_bytes, size_bytes=len)


def shared(cache: LRU[str] | None = None) -> SharedResults[str]:
    return SharedResults(lru() if cache is None else cache)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = lru(entries=2)
    cache.put(b"a", "1")
    cache.put(b"b", "2")
    assert cache.get(b"a") == "1"
    cache.put(b"c", "3")
    assert (cache.get(b"a"), cache.get(b"b"), cache.get(b"c")) == ("1", None, "3")
    assert cache.stats() == {
        "cache_hits": 3, "cache_misses": 1, "cache_entries": 2, "cache_bytes": 2,
    }  # fmt: skip


def test_bytes_are_bounded_and_what_is_too_large_displaces_nothing() -> None:
    cache = lru(most_bytes=10)
    cache.put(b"a", "x" * 4)
    cache.put(b"b", "x" * 5)
    cache.put(b"huge", "x" * 11)
    assert cache.stats()["cache_bytes"] == 9
    cache.put(b"c", "x" * 6)
    assert cache.get(b"a") is None
    assert cache.get(b"b") is None
    cache.put(b"c", "x")
    assert (cache.stats()["cache_entries"], cache.stats()["cache_bytes"]) == (1, 1)


def test_what_is_forgotten_is_computed_again() -> None:
    results = shared()
    computed: list[int] = []

    def compute(places: list[int]) -> list[str]:
        computed.extend(places)
        return ["x"] * len(places)

    for _ in range(2):
        assert results.obtain([b"a"], compute) == ["x"]
        assert results.obtain([b"a"], compute) == ["x"]
        results.forget()
        assert (results.stats()["cache_entries"], results.stats()["cache_bytes"]) == (0, 0)
    assert computed == [0, 0]


def test_no_entries_means_no_cache() -> None:
    cache = lru(entries=0)
    cache.put(b"a", "1")
    assert cache.get(b"a") is None
    assert cache.stats()["cache_bytes"] == 0


def test_limits_hold_over_random_use() -> None:
    draw = random.Random(0)
    cache = lru(entries=5, most_bytes=40)
    held: dict[bytes, int] = {}
    for _ in range(2000):
        key = bytes([draw.randrange(12)])
        if draw.random() < 0.5:
            held[key] = draw.randrange(1, 20)
            cache.put(key, "x" * held[key])
        elif (value := cache.get(key)) is not None:
            assert len(value) == held[key]
        sizes = [held[key] for key in cache._values]
        assert sum(sizes) == cache.stats()["cache_bytes"] <= 40
        assert len(sizes) <= 5


def test_equal_keys_of_one_call_are_computed_once() -> None:
    results, asked = shared(), []

    def compute(places: list[int]) -> list[str]:
        asked.append(places)
        return [f"made at {place}" for place in places]

    assert results.obtain([b"a", b"b", b"a"], compute) == ["made at 0", "made at 1", "made at 0"]
    assert results.obtain([b"c", b"b"], compute) == ["made at 0", "made at 1"]
    assert asked == [[0, 1], [0]]
    stats = results.stats()
    assert (stats["cache_hits"], stats["cache_misses"], stats["inflight_joined"]) == (1, 3, 1)


def test_errors_are_given_and_not_kept() -> None:
    results = shared()
    torn = MediaError("torn")
    assert results.obtain([b"a", b"b"], lambda places: [torn, "fine"]) == [torn, "fine"]
    assert results.obtain([b"a", b"b"], lambda places: ["mended"]) == ["mended", "fine"]


class Stuck:
    """A computation that waits inside until it is let go, then returns or raises `outcome`."""

    def __init__(self, outcome: str | Exception) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self._outcome = outcome

    def __call__(self, places: list[int]) -> list[str | OmniError]:
        self.entered.set()
        assert self.go.wait(PATIENCE_S)
        if isinstance(self._outcome, str | OmniError):
            return [self._outcome for _ in places]
        raise self._outcome


def joined(results: SharedResults[str], count: int) -> None:
    """Wait until `count` lookups wait for another's computation."""
    for _ in range(int(PATIENCE_S * 1000)):
        if results.stats()["inflight_joined"] == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(results.stats())


def never(places: list[int]) -> list[str | OmniError]:
    raise AssertionError("somebody else computes this")


@pytest.mark.parametrize("entries", [64, 0], ids=["cached", "cache off"])
def test_a_second_request_waits_for_the_first(entries: int) -> None:
    results, first = shared(lru(entries)), Stuck("made")
    with ThreadPoolExecutor() as pool:
        one = pool.submit(results.obtain, [b"a"], first)
        assert first.entered.wait(PATIENCE_S)
        others = [pool.submit(results.obtain, [b"a"], never) for _ in range(3)]
        joined(results, 3)
        first.go.set()
        assert [future.result(PATIENCE_S) for future in (one, *others)] == [["made"]] * 4


@pytest.mark.parametrize("failure", [MediaError("torn"), ValueError("boom")], ids=str)
def test_when_the_first_fails_one_of_those_who_wait_computes(failure: Exception) -> None:
    results, first, second = shared(), Stuck(failure), Stuck("made")
    with ThreadPoolExecutor() as pool:
        one = pool.submit(results.obtain, [b"a"], first)
        assert first.entered.wait(PATIENCE_S)
        others = [pool.submit(results.obtain, [b"a"], second) for _ in range(3)]
        joined(results, 3)
        first.go.set()
        assert second.entered.wait(PATIENCE_S)
        second.go.set()
        assert [future.result(PATIENCE_S) for future in others] == [["made"]] * 3
        assert outcome(one) == failure
    assert results.stats()["cache_misses"] == 2


def outcome(future: Future[list[str | OmniError]]) -> object:
    error = future.exception(PATIENCE_S)
    return error if error is not None else future.result()[0]


def test_a_request_computes_its_own_before_it_waits_for_others() -> None:
    results, one, two = shared(), Stuck("one"), Stuck("two")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(results.obtain, [b"a"], one)
        second = pool.submit(results.obtain, [b"b", b"a"], two)
        assert one.entered.wait(PATIENCE_S)
        assert two.entered.wait(PATIENCE_S)
        third = pool.submit(results.obtain, [b"a", b"b"], never)
        two.go.set()
        assert outcome(pool.submit(results.obtain, [b"b"], never)) == "two"
        one.go.set()
        assert first.result(PATIENCE_S) == ["one"]
        assert second.result(PATIENCE_S) == third.result(PATIENCE_S)[::-1]


def test_many_threads_get_what_belongs_to_their_keys() -> None:
    results = shared(lru(entries=3))

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(200):
            keys = [bytes([draw.randrange(8)]) for _ in range(draw.randrange(1, 5))]
            got = results.obtain(keys, lambda places, keys=keys: [str(keys[p]) for p in places])
            assert got == [str(key) for key in keys]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))
    assert results._flights == {}
