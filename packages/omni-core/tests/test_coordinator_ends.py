"""Requests that wait, and all the ways in which one ends early: pure, without processes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from omni_core.codec import Codec
from omni_core.coordinator.aborts import MOST_REMEMBERED, Aborts, Silent
from omni_core.coordinator.active import Active
from omni_core.coordinator.admission import AdmissionLimits, Occupancy
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.unread import Unread
from omni_core.errors import (
    DeadlineError,
    NotReadyError,
    OmniError,
    OverloadedError,
    RateLimitError,
    RequestCancelledError,
    RequestError,
    SlowClientError,
)
from omni_core.messages import AbortRequest, DataReady, Done, Emit, Released, ToStage
from omni_core.specs import Ref, StageConfig
from omni_core.testing.clock import VirtualClock
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    Modality,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    Usage,
)

BUILD = Ref("x:y")
STAGES = [
    StageConfig(name="think", factory=BUILD, next=("speak",), process="front", terminal="text"),
    StageConfig(name="speak", factory=BUILD, terminal="audio"),
]


class Diary(Silent):
    """An `Observer` that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.waited: list[tuple[tuple[Modality, ...], float]] = []

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        self.waited.append((tuple(modalities), waited_s))

    def refused(self, reason: str) -> None:
        self.told.append(("refused", reason))

    def aborted(self, reason: str) -> None:
        self.told.append(("aborted", reason))

    def released(self, stage: str, after_s: float) -> None:
        assert after_s >= 0
        self.told.append(("released", stage))


class Desk:
    """A coordinator with room for one request and a queue of two."""

    def __init__(self, unread: Unread[Active] | None = None, *, encode: bool = False) -> None:
        self.encode = encode
        self.sent: list[tuple[str, ToStage]] = []
        self.clock, self.diary, self.fleet = VirtualClock(), Diary(), Fleet(STAGES)
        for replica in self.fleet.replicas:
            replica.state = "ready"
        self.coordinator = Coordinator(
            STAGES,
            "think",
            self.fleet,
            self._send,
            limits=AdmissionLimits(max_in_flight=1, max_queue=2),
            unread=unread,
            observer=self.diary,
            call_later=self.clock.call_later,
        )

    def _send(self, process: str, message: ToStage) -> None:
        if self.encode:
            Codec().encode(message)
        self.sent.append((process, message))

    def submit(self, name: str, client: str = "", timeout_s: float | None = None) -> Active:
        request = Request(messages=(), request_id=name, client=client, timeout_s=timeout_s)
        return self.coordinator.submit(request)

    def started(self) -> list[str]:
        ids = [message.request_id for _, message in self.sent if isinstance(message, DataReady)]
        return [request_id.partition("#")[0] for request_id in ids]

    def aborted(self) -> list[str]:
        ids = [message.request_id for _, message in self.sent if isinstance(message, AbortRequest)]
        return [request_id.partition("#")[0] for request_id in ids]

    def finish(self, active: Active) -> None:
        done = Done(
            request_id=active.request_id, stage="think", opened=(), usage=Usage(),
            finish_reason="stop", start_s=0, first_output_s=None, end_s=0,
        )  # fmt: skip
        self.coordinator.handle(done)

    def tell(self, active: Active, event: TextDelta | AudioDelta) -> None:
        emit = Emit(request_id=active.request_id, stage="think", event=event)
        self.coordinator.handle(emit)

    def occupancy(self) -> tuple[int, int, int]:
        now: Occupancy = self.coordinator.occupancy()
        return now.in_flight, now.queued, now.aborting


def error_of(active: Active) -> OmniError:
    assert active.ended
    [error] = active.events.collect()
    assert isinstance(error, OmniError)
    return error


def test_a_request_that_waits_starts_when_one_ends() -> None:
    desk = Desk()
    first, second = desk.submit("first"), desk.submit("second")
    assert desk.started() == ["first"]
    assert desk.occupancy() == (1, 1, 0)
    desk.finish(first)
    assert isinstance(first.events.collect()[0], Finished)
    assert desk.started() == ["first", "second"]
    desk.finish(second)
    assert desk.occupancy() == (0, 0, 0)
    assert desk.diary.told == []
    assert [modalities for modalities, _ in desk.diary.waited] == [("text",), ("text",)]
    assert all(waited_s >= 0 for _, waited_s in desk.diary.waited)


def test_a_client_that_leaves_the_queue_costs_the_stages_nothing() -> None:
    desk = Desk()
    first, second, third = (desk.submit(name) for name in ("first", "second", "third"))
    desk.coordinator.release(second)
    assert desk.occupancy() == (1, 1, 0)
    desk.finish(first)
    assert desk.started() == ["first", "third"]
    assert desk.aborted() == []
    desk.coordinator.release(third)
    assert desk.aborted() == ["third"]


def test_a_full_queue_refuses_and_is_told_of() -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.submit(name, client="one")
    with pytest.raises(RateLimitError):
        desk.submit("d", client="one")
    with pytest.raises(OverloadedError):
        full_of_others().submit("d", client="four")
    assert desk.diary.told == [("refused", "rate_limit_exceeded")]
    assert desk.occupancy() == (1, 2, 0)


def full_of_others() -> Desk:
    desk = Desk()
    for name in ("one", "two", "three"):
        desk.submit(name, client=name)
    return desk


def test_who_fills_the_queue_loses_a_place_to_who_has_none() -> None:
    desk = Desk()
    _, _, newest = (desk.submit(name, client="one") for name in ("a", "b", "c"))
    desk.submit("d", client="two")
    assert isinstance(error_of(newest), RateLimitError)
    assert ("refused", "rate_limit_exceeded") in desk.diary.told
    assert desk.occupancy() == (1, 2, 0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_deadline_ends_a_request_wherever_it_is(waits: bool) -> None:
    desk = Desk()
    if waits:
        desk.submit("before")
    late = desk.submit("late", timeout_s=3)
    desk.clock.pass_time(2.9)
    assert not late.ended
    desk.clock.pass_time(0.2)
    error = error_of(late)
    assert isinstance(error, DeadlineError)
    assert "within 3 s" in error.message
    assert desk.aborted() == ([] if waits else ["late"])
    assert desk.diary.told == [("aborted", "deadline_exceeded")]


def test_the_deadline_of_a_request_that_has_ended_does_nothing() -> None:
    desk = Desk()
    done, left = desk.submit("done", timeout_s=3), desk.submit("left", timeout_s=3)
    desk.finish(done)
    desk.coordinator.release(left)
    assert [timer.cancelled for timer in desk.clock.timers] == [True, True]


def test_only_its_own_client_cancels_a_request() -> None:
    desk = Desk()
    runs, waits = desk.submit("same", client="one"), desk.submit("same", client="one")
    other = desk.submit("same", client="two")
    assert desk.coordinator.cancel("same", "three") == 0
    assert desk.coordinator.cancel("sam", "one") == 0
    assert desk.coordinator.cancel("same", "one") == 2
    assert desk.coordinator.cancel("same", "one") == 0
    for active in (runs, waits):
        assert isinstance(error_of(active), RequestCancelledError)
    assert not other.ended
    assert desk.started() == ["same", "same"]
    assert desk.occupancy() == (1, 0, 1)


def test_stages_are_waited_for_until_they_have_let_go() -> None:
    desk = Desk()
    active = desk.submit("a")
    desk.coordinator.release(active)
    assert desk.occupancy() == (0, 0, 1)
    for stage in ("speak", "think", "think"):  # it asked for text alone: speak never saw it
        desk.coordinator.released(Released(request_id=active.request_id, stage=stage))
    desk.coordinator.released(Released(request_id="stranger", stage="think"))
    assert desk.diary.told == [("aborted", "disconnect"), ("released", "think")]
    assert desk.occupancy() == (0, 0, 0)


def test_a_process_that_dies_has_let_go_of_everything() -> None:
    desk = Desk()
    desk.coordinator.release(desk.submit("a"))
    replica = desk.fleet.find("front")
    assert replica is not None
    replica.state = "dead"
    desk.coordinator.process_died("front", "exit code 1")
    assert desk.occupancy() == (0, 0, 0)


def test_aborts_that_nobody_answers_are_forgotten_at_last() -> None:
    aborts = Aborts()
    for number in range(MOST_REMEMBERED + 1):
        aborts.sent(str(number), {"think": "front"})
    assert len(aborts) == MOST_REMEMBERED
    assert aborts.released("0", "think") is None
    assert aborts.released("1", "think") is not None


def test_what_waits_fails_when_what_it_needs_has_died() -> None:
    desk = Desk()
    running, waiting = desk.submit("runs"), desk.submit("waits")
    replica = desk.fleet.find("front")
    assert replica is not None
    replica.state = "dead"
    desk.coordinator.process_died("front", "exit code 1")
    assert error_of(running).code == "stage_died"
    assert isinstance(error_of(waiting), NotReadyError)
    told = [("aborted", "stage_died"), ("refused", "not_ready")]
    assert sorted(desk.diary.told) == told, "each once"
    assert desk.occupancy() == (0, 0, 0)


def unsendable(name: str) -> Request:
    return Request(
        messages=(), params=RequestParams(sampling=SamplingParams(seed=2**70)), request_id=name
    )


@pytest.mark.parametrize("waits", [False, True])
def test_what_cannot_be_encoded_ends_alone(waits: bool) -> None:
    desk = Desk(encode=True)
    running = desk.submit("runs") if waits else None
    bad = desk.coordinator.submit(unsendable("bad"))
    after = desk.submit("after")
    if running is not None:
        desk.finish(running)
    error = error_of(bad)
    assert isinstance(error, RequestError)
    assert "cannot be encoded" in error.message
    assert desk.started()[-1] == "after"
    assert desk.occupancy() == (1, 0, 0)
    desk.finish(after)
    assert [replica.load for replica in desk.fleet.replicas] == [0, 0]


def test_a_warm_up_that_cannot_be_encoded_leaves_nothing() -> None:
    desk = Desk(encode=True)
    bad = desk.coordinator.submit(unsendable("warm"), warm_up=True)
    assert isinstance(error_of(bad), RequestError)
    assert desk.coordinator.in_flight == 0
    assert [replica.load for replica in desk.fleet.replicas] == [0, 0]


def test_closing_starts_nobody() -> None:
    desk = Desk()
    both = [desk.submit("runs"), desk.submit("waits")]
    desk.coordinator.close(NotReadyError("closing"))
    assert [error_of(active).message for active in both] == ["closing", "closing"]
    assert desk.started() == ["runs"]


def test_a_warm_up_waits_for_no_turn() -> None:
    desk = Desk()
    desk.submit("runs")
    warm_up = desk.coordinator.submit(Request(messages=(), request_id="warm"), warm_up=True)
    assert desk.started() == ["runs", "warm"]
    desk.finish(warm_up)
    assert desk.occupancy() == (1, 0, 0)


SOUND = AudioDelta(samples=np.zeros(1000, np.float32), sample_rate=24_000)
"""42 ms, and 4,256 bytes by our count."""


@pytest.mark.parametrize(
    ("bounds", "event"),
    [
        pytest.param({"most_audio_s": 0.11}, SOUND, id="audio"),
        pytest.param({"most_bytes": 10_000}, TextDelta(text=4000 * "x"), id="text"),
    ],
)
async def test_a_client_that_does_not_read_is_cut_off(bounds: dict[str, Any], event: Event) -> None:
    desk = Desk(unread=Unread(**bounds))
    active = desk.submit("a")
    for _ in range(5):
        desk.tell(active, event)
        desk.tell(active, TextDelta(text="x"))
        assert (await active.take()) == ([event, TextDelta(text="x")], None)
    for _ in range(3):
        assert not active.ended
        desk.tell(active, event)
    assert isinstance(error_of(active), SlowClientError)
    assert desk.aborted() == ["a"]
    desk.tell(active, event)
    assert active.events.collect() == []


async def test_a_listener_may_be_behind_by_half_an_hour() -> None:
    """In real time, of a reading that is made faster and told at any rate."""
    desk = Desk()
    active = desk.submit("a")
    second = AudioDelta(samples=np.zeros(44_100, np.float32), sample_rate=44_100)
    for _ in range(1800):
        desk.tell(active, second)
    assert not active.ended
    desk.tell(active, second)
    assert isinstance(error_of(active), SlowClientError)


async def test_clients_that_do_not_read_are_cut_off_together() -> None:
    """Replies that ended long ago count: the client with the most to read loses it."""
    unread = Unread[Active](most_audio_s=0.2, most_of_all_bytes=30_000)
    desk = Desk(unread=unread)
    ended = desk.submit("ended")
    for _ in range(4):
        desk.tell(ended, SOUND)
    desk.finish(ended)
    active = desk.submit("active")
    for _ in range(3):
        desk.tell(active, SOUND)
    assert len(ended.events.collect()) == 5
    desk.tell(active, SOUND)
    assert isinstance(error_of(ended), SlowClientError)
    assert not active.ended
    assert unread.total_bytes == 4 * 4256
    assert (await active.take()) == ([SOUND] * 4, None)
    desk.coordinator.release(active)
    assert unread.total_bytes == 0
