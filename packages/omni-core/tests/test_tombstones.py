"""Ids of ended requests are kept, but neither too many nor too long."""

from __future__ import annotations

from omni_core.stage.tombstones import Tombstones


def test_the_oldest_go_when_there_are_too_many() -> None:
    stones = Tombstones(most=2)
    for name in ("a", "b", "a", "c"):
        stones.set(name)
    assert [name in stones for name in "abc"] == [True, False, True]
    assert len(stones) == 2


def test_the_oldest_go_when_they_are_too_old() -> None:
    now_s = 0.0
    stones = Tombstones(most=9, lifetime_s=10, clock=lambda: now_s)
    stones.set("a")
    now_s = 6.0
    stones.set("b")
    now_s = 11.0
    stones.sweep()
    assert ("a" in stones, "b" in stones) == (False, True)
    now_s = 17.0
    stones.set("c")
    assert len(stones) == 1
