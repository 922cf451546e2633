"""Who runs, who waits and who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.coordinator.admission import Admission, AdmissionLimits
from omni_core.errors import OverloadedError, RateLimitError
from omni_core.testing.clock import VirtualClock


def admission(in_flight: int, queue: int, clock: VirtualClock | None = None) -> Admission:
    limits = AdmissionLimits(max_in_flight=in_flight, max_queue=queue)
    return Admission(limits, clock=clock or VirtualClock())


def enter(desk: Admission, *names: str) -> list[str]:
    """Join under the client that a name begins with; returns who runs now because of it."""
    for name in names:
        desk.join(name, name[0])
    return take_all(desk)


def take_all(desk: Admission) -> list[str]:
    taken = []
    while (name := desk.take()) is not None:
        taken.append(name)
    return taken


def test_as_many_run_as_may_and_the_rest_wait() -> None:
    desk = admission(2, 5)
    assert enter(desk, "a1", "a2", "a3") == ["a1", "a2"]
    assert (desk.running, desk.queued) == (2, 1)
    desk.leave("a1")
    assert take_all(desk) == ["a3"]
    assert (desk.running, desk.queued) == (2, 0)


def test_clients_take_turns_whoever_has_asked_for_more() -> None:
    desk = admission(1, 10)
    enter(desk, "a1", "a2", "a3", "a4", "b1", "c1", "b2")
    served = ["a1"]
    for name in served:  # grows while it is read
        desk.leave(name)
        served += take_all(desk)
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_who_leaves_the_queue_is_not_served() -> None:
    desk = admission(1, 10)
    enter(desk, "a1", "a2", "b1")
    desk.leave("a2")
    desk.leave("a2")
    desk.leave("nobody")
    desk.leave("a1")
    assert take_all(desk) == ["b1"]
    assert desk.queued == 0


def test_a_full_queue_refuses_the_client_that_fills_it() -> None:
    desk = admission(1, 2)
    enter(desk, "a1", "a2", "a3")
    with pytest.raises(RateLimitError, match="its share"):
        desk.join("a4", "a")
    assert (desk.running, desk.queued) == (1, 2)


def test_a_full_queue_makes_room_for_who_has_less() -> None:
    desk = admission(1, 3)
    enter(desk, "a1", "a2", "a3", "a4")
    assert desk.join("b1", "b") == "a4"
    assert desk.queued == 3
    with pytest.raises(RateLimitError):
        desk.join("b2", "b")
    with pytest.raises(RateLimitError):
        desk.join("a5", "a")


def test_a_queue_full_of_others_that_have_one_each_refuses_everybody() -> None:
    desk = admission(1, 2)
    enter(desk, "a1", "b1", "c1")
    with pytest.raises(OverloadedError, match="1 requests run and 2 wait"):
        desk.join("d1", "d")


def test_without_a_queue_what_cannot_run_is_refused() -> None:
    desk = admission(1, 0)
    assert enter(desk, "a1") == ["a1"]
    with pytest.raises(OverloadedError):
        desk.join("a2", "a")
    desk.leave("a1")
    assert enter(desk, "a2") == ["a2"]


def test_a_retry_is_asked_for_when_those_that_wait_will_have_run() -> None:
    clock = VirtualClock()
    desk = admission(2, 3, clock)
    enter(desk, "a1", "a2")
    clock.now_s = 10.0
    desk.leave("a1")
    enter(desk, "a3", "a4", "a5", "a6")
    with pytest.raises(RateLimitError) as refused:
        desk.join("a7", "a")
    assert refused.value.retry_after_s == 20  # two rounds of 10 s


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_nobody_is_lost_and_no_bound_is_passed(moves: list[tuple[str, bool]]) -> None:
    """Whatever comes and goes: each request is refused, evicted, waiting or running, and once."""
    desk, alive, running, number = admission(2, 3), set[str](), set[str](), 0
    for client, comes in moves:
        if comes:
            number += 1
            name = f"{client}{number}"
            try:
                loser = desk.join(name, client)
            except (OverloadedError, RateLimitError):
                continue
            alive.add(name)
            alive.discard(loser or "")
        elif alive:
            gone = min(alive)
            alive.discard(gone)
            running.discard(gone)
            desk.leave(gone)
        running.update(take_all(desk))
        assert running <= alive
        assert (desk.running, desk.queued) == (len(running), len(alive - running))
        assert len(running) == min(2, len(alive))
        assert desk.queued <= 3
