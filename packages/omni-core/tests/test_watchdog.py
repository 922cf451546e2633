"""When a process is asked whether it is there, and when it is given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omni_core.coordinator.fleet import Fleet, Replica
from omni_core.coordinator.watchdog import Watchdog
from omni_core.messages import Ping
from omni_core.specs import Ref, StageConfig

BUILD = Ref("x:y")
STAGES = [
    StageConfig(name="think", factory=BUILD, next=("voice",), terminal="text"),
    StageConfig(name="voice", factory=BUILD, terminal="audio"),
]
TIMEOUT_S = 6.0


class Call:
    """One that is due."""

    def __init__(self, due_s: float, call: Callable[[], None]) -> None:
        self.due_s, self.call, self.cancelled = due_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Watched:
    """A fleet of two under a watchdog, and time that passes when told."""

    def __init__(self, timeout_s: float | None = TIMEOUT_S) -> None:
        self.now_s = 0.0
        self.due: list[Call] = []
        self.asked: list[tuple[float, str]] = []
        self.hung: list[tuple[float, str]] = []
        self.deaf: set[str] = set()
        self.fleet = Fleet(STAGES)
        for replica in self.fleet.replicas:
            replica.state = "ready"
        self.watchdog = Watchdog(
            self.fleet,
            self._ask,
            self._give_up,
            timeout_s,
            call_later=self._call_later,
            clock=lambda: self.now_s,
        )

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Call:
        self.due.append(Call(self.now_s + delay_s, call))
        return self.due[-1]

    def _ask(self, process: str, message: Ping) -> None:
        self.asked.append((self.now_s, process))
        if process not in self.deaf:
            self._call_later(0.1, lambda: self.watchdog.answered(process))

    def _give_up(self, replica: Replica) -> None:
        self.hung.append((self.now_s, replica.process))
        replica.state = "dead"

    def submit(self, *stages: str) -> dict[str, str]:
        pins = self.fleet.pin(stages)
        self.watchdog.wake()
        return pins

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while calls := [call for call in self.due if call.due_s <= until_s]:
            first = min(calls, key=lambda call: call.due_s)
            self.due.remove(first)
            self.now_s = max(self.now_s, first.due_s)
            if not first.cancelled:
                first.call()
        self.now_s = until_s

    def stand_still(self, seconds: float) -> None:
        """Nothing is called while the time passes; what is due then is called late."""
        self.now_s += seconds
        self.pass_time(0.0)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_only_who_has_requests_is_asked_and_who_answers_is_let_be(watched: Watched) -> None:
    watched.submit("think")
    watched.pass_time(10 * TIMEOUT_S)
    assert {process for _, process in watched.asked} == {"think"}
    assert len(watched.asked) == 60, "once a round"
    assert not watched.hung


def test_without_requests_nothing_happens(watched: Watched) -> None:
    pins = watched.submit("think", "voice")
    watched.pass_time(2.5)
    watched.fleet.unpin(pins)
    watched.pass_time(1.0)
    asked = len(watched.asked)
    assert not [call for call in watched.due if not call.cancelled], "no timer is left"
    watched.submit("think")
    watched.pass_time(1.0)
    assert len(watched.asked) == asked + 1, "it wakes again"


def test_who_does_not_answer_is_given_up_once_the_limit_has_passed(watched: Watched) -> None:
    watched.deaf.add("voice")
    watched.submit("think", "voice")
    watched.pass_time(TIMEOUT_S)
    assert not watched.hung
    watched.pass_time(2.0)
    [(given_up_s, process)] = watched.hung
    assert process == "voice"
    [asked_s] = [asked_s for asked_s, name in watched.asked if name == "voice"]
    assert given_up_s - asked_s == pytest.approx(TIMEOUT_S)


def test_who_answers_late_but_in_time_is_let_be(watched: Watched) -> None:
    watched.deaf.add("voice")
    watched.submit("voice")
    for _ in range(4):
        watched.pass_time(TIMEOUT_S - 0.5)
        watched.watchdog.answered("voice")
    assert not watched.hung


def test_who_lost_its_requests_meanwhile_is_given_up_all_the_same(watched: Watched) -> None:
    watched.deaf.add("voice")
    pins = watched.submit("voice")
    watched.pass_time(1.5)
    watched.fleet.unpin(pins)
    watched.pass_time(TIMEOUT_S)
    assert [process for _, process in watched.hung] == ["voice"]


def test_who_stood_still_itself_blames_nobody(watched: Watched) -> None:
    watched.deaf.add("voice")
    watched.submit("voice")
    watched.pass_time(5.5)
    watched.stand_still(30.0)
    assert not watched.hung
    assert len(watched.asked) == 2, "it asks anew"
    watched.pass_time(5.5)
    assert not watched.hung
    watched.pass_time(1.0)
    assert [process for _, process in watched.hung] == ["voice"]


def test_one_that_is_not_ready_is_not_asked(watched: Watched) -> None:
    watched.submit("voice")
    watched.fleet.replicas[1].state = "dead"
    watched.pass_time(5.0)
    assert not watched.asked


@pytest.mark.parametrize("stop", [False, True])
def test_nobody_is_asked_without_a_limit_or_after_the_end(stop: bool) -> None:
    watched = Watched(TIMEOUT_S if stop else None)
    watched.submit("voice")
    if stop:
        watched.watchdog.stop()
        watched.watchdog.wake()
    watched.pass_time(5 * TIMEOUT_S)
    assert not watched.asked
