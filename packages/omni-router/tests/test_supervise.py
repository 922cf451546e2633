"""How long to wait before a dead process is started again."""

from __future__ import annotations

import pytest

from omni_router.supervise import Child, Patience

PATIENCE = Patience(steady_s=60, deaths=4, first_s=1, loop_pause_s=50)


def lives_for(child: Child, *lives_s: float) -> list[float]:
    """The pauses after lives of these lengths."""
    pauses = []
    for life_s in lives_s:
        child.pid, child.started_s = 1, 100.0
        pauses.append(child.died(100.0 + life_s))
    return pauses


def test_each_pause_is_longer_until_it_is_a_crash_loop() -> None:
    child = Child(name="one", run=lambda: None, patience=PATIENCE)
    assert lives_for(child, 0, 0, 59) == [1, 2, 4]
    assert not child.is_looping
    assert lives_for(child, 0, 0) == [50, 50]
    assert child.is_looping
    assert child.due_s == pytest.approx(150)


def test_a_long_life_ends_the_row() -> None:
    child = Child(name="one", run=lambda: None, patience=PATIENCE)
    assert lives_for(child, 0, 0, 0, 0, 60, 0) == [1, 2, 4, 50, 1, 2]


def test_a_child_that_lives_is_in_no_loop() -> None:
    child = Child(name="one", run=lambda: None, patience=PATIENCE)
    lives_for(child, 0, 0, 0, 0)
    child.pid = 1
    assert not child.is_looping
