"""Who serves what: states, pins, successors, and how long to wait for one."""

from __future__ import annotations

import pytest

from omni_core.coordinator.backoff import DEATHS, Backoff
from omni_core.coordinator.fleet import Fleet
from omni_core.errors import NotReadyError
from omni_core.specs import Ref, StageConfig

BUILD = Ref("x:y")
STAGES = [
    StageConfig(name="ear", factory=BUILD, next=("think",), process="front"),
    StageConfig(name="think", factory=BUILD, next=("voice",), process="front", terminal="text"),
    StageConfig(name="voice", factory=BUILD, terminal="audio", replicas=3),
]
NAMES = [stage.name for stage in STAGES]


@pytest.fixture
def fleet() -> Fleet:
    """All is ready."""
    made = Fleet(STAGES)
    for replica in made.replicas:
        replica.state = "ready"
    return made


def test_a_group_has_one_process_and_a_replicated_one_several() -> None:
    fleet = Fleet(STAGES)
    assert [replica.process for replica in fleet.replicas] == [
        "front",
        "voice",
        "voice.1",
        "voice.2",
    ]
    assert [replica.name for replica in fleet.of_stage("think")] == ["front"]
    assert [fleet.number(replica) for replica in fleet.of_stage("voice")] == [0, 1, 2]


def test_a_request_is_pinned_to_one_process_of_each_group_by_least_load(fleet: Fleet) -> None:
    pins = [fleet.pin(NAMES) for _ in range(5)]
    assert {(p["ear"], p["think"]) for p in pins} == {("front", "front")}
    assert [p["voice"] for p in pins] == ["voice", "voice.1", "voice.2", "voice", "voice.1"]
    for pin in (pins[0], pins[3]):
        fleet.unpin(pin)
    assert [fleet.pin(NAMES)["voice"] for _ in range(2)] == ["voice", "voice.2"]
    assert fleet.of_stage("ear")[0].load == 5


def test_equals_take_turns(fleet: Fleet) -> None:
    served = []
    for _ in range(6):
        pins = fleet.pin(NAMES)
        served.append(pins["voice"])
        fleet.unpin(pins)
    assert served == ["voice", "voice.1", "voice.2"] * 2


def test_a_dead_replica_gets_nothing_and_the_last_one_is_missed(fleet: Fleet) -> None:
    first, second, third = fleet.of_stage("voice")
    first.state = third.state = "dead"
    assert {fleet.pin(NAMES)["voice"] for _ in range(4)} == {"voice.1"}
    assert fleet.living() == ["front", "voice.1"]
    second.state = "dead"
    assert fleet.down(NAMES) == ["voice"]
    with pytest.raises(NotReadyError, match="not ready: voice; retry"):
        fleet.pin(NAMES)
    fleet.pin(["ear", "think"])
    assert fleet.of_stage("think")[0].load == 5, "a request that is refused loads nobody"


def test_a_replica_can_be_done_without_while_another_serves_or_may_soon(fleet: Fleet) -> None:
    first, second, third = fleet.of_stage("voice")
    first.state, first.last_death = "dead", "exit"
    second.state, second.last_death = "dead", "crash_loop"
    assert fleet.is_replaceable(first)
    third.state, third.last_death = "starting", "exit"
    assert fleet.is_replaceable(first)
    third.last_death = "crash_loop"
    assert not fleet.is_replaceable(first)
    assert fleet.is_replaceable(second), "the first has died once"
    third.state = "ready"
    assert fleet.is_replaceable(first), "it is back"
    assert not fleet.is_replaceable(fleet.of_stage("ear")[0]), "there is no other"


def test_a_successor_has_a_name_of_its_own_and_serves_once_it_is_warm(fleet: Fleet) -> None:
    [front] = fleet.of_stage("think")
    old = fleet.pin(["ear", "think"])
    front.state = "dead"
    fleet.succeed(front)
    assert (front.process, front.restarts, front.load) == ("front@1", 1, 0)
    assert fleet.find("front") is None
    fleet.unpin(old)
    assert front.load == 0
    assert not fleet.built("front", "ear"), "news of the dead are no news"
    assert not fleet.built("front@1", "ear")
    assert fleet.built("front@1", "think")
    assert not fleet.built("front@1", "think"), "told once"
    with pytest.raises(NotReadyError, match="not ready: ear, think"):
        fleet.pin(["ear", "think"])
    pins = fleet.pin(["ear", "think"], warm_up=True)
    assert fleet.warmed(pins) == [front]
    assert fleet.warmed(pins) == []
    assert fleet.pin(["think"]) == {"think": "front@1"}


def test_a_warm_up_request_prefers_those_that_have_not_served(fleet: Fleet) -> None:
    fleet.of_stage("voice")[2].state = "built"
    assert fleet.any_built(NAMES)
    assert fleet.pin(NAMES, warm_up=True)["voice"] == "voice.2"
    assert fleet.pin(NAMES)["voice"] == "voice"


def test_pauses_grow_and_a_crash_loop_ends() -> None:
    backoff = Backoff()
    pauses = [backoff.died(float(second)) for second in range(DEATHS)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, None]


def test_being_ready_does_not_make_many_deaths_in_a_minute_good() -> None:
    backoff = Backoff()
    for second in range(DEATHS - 1):
        assert backoff.died(float(second)) is not None
        backoff.ready()
    assert backoff.died(50.0) is None


def test_rare_deaths_are_mended_for_ever_if_it_serves_between_them() -> None:
    backoff = Backoff()
    for death in range(20):
        assert backoff.died(death * 61.0) == 0.1
        backoff.ready()
    for death in range(20, 20 + DEATHS - 1):
        assert backoff.died(death * 61.0) is not None
    assert backoff.died(999_999.0) is None, "it was never ready again"
