"""The books of requests over stages: pure, without processes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from omni_core.coordinator.active import Active
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.fleet import Fleet
from omni_core.errors import (
    ErrorInfo,
    MediaError,
    NotReadyError,
    OmniError,
    ProtocolError,
    RequestError,
    StageDiedError,
)
from omni_core.messages import AbortRequest, DataReady, Done, Emit, Fail, ToStage
from omni_core.specs import Ref, StageConfig
from omni_core.types import Event, Finished, Modality, Request, RequestParams, TextDelta, Usage

BUILD = Ref("x:y")
STAGES = [
    StageConfig(name="entry", factory=BUILD, next=("image", "join"), process="front"),
    StageConfig(name="image", factory=BUILD, next=("join",)),
    StageConfig(name="join", factory=BUILD, next=("think",), process="front"),
    StageConfig(name="think", factory=BUILD, next=("detok", "talk")),
    StageConfig(name="detok", factory=BUILD, terminal="text"),
    StageConfig(name="talk", factory=BUILD, next=("voice",)),
    StageConfig(name="voice", factory=BUILD, terminal="audio"),
]
OPENS = {
    "entry": ("image", "join"),
    "image": ("join",),
    "join": ("think",),
    "think": ("detok", "talk"),
    "detok": (),
    "talk": ("voice",),
    "voice": (),
}
SILENT = {"entry": ("join",), "join": ("think",), "think": ("detok",), "detok": ()}


END_NOWHERE = Done(request_id="any", stage="nowhere", start_s=0.0, first_output_s=None, end_s=0.0)


class Desk:
    """A coordinator whose stages are all ready, and what it sent."""

    def __init__(self, *, ready: bool = True) -> None:
        self.sent: list[tuple[str, ToStage]] = []
        self.fleet = Fleet(STAGES)
        self.coordinator = Coordinator(STAGES, "entry", self.fleet, self._send)
        for replica in self.fleet.replicas if ready else ():
            replica.state = "ready"

    def die(self, process: str, detail: str) -> None:
        replica = self.fleet.find(process)
        assert replica is not None
        replica.state = "dead"
        self.coordinator.process_died(process, detail)

    def _send(self, process: str, message: ToStage) -> None:
        self.sent.append((process, message))

    def submit(self, *modalities: Any, name: str | None = None) -> Active:
        params = RequestParams(modalities=modalities or ("text", "audio"))
        return self.coordinator.submit(Request(messages=(), params=params, request_id=name))

    def done(self, active: Active, stage: str, **fields: Any) -> None:
        base: dict[str, Any] = {
            "opened": OPENS[stage],
            "usage": Usage(),
            "finish_reason": None,
            "start_s": active.submitted_s + 1,
            "first_output_s": None,
            "end_s": active.submitted_s + 2,
        }
        message = Done(request_id=active.request_id, stage=stage, **{**base, **fields})
        self.coordinator.handle(message)

    def aborted(self) -> set[str]:
        processes = [p for p, m in self.sent if isinstance(m, AbortRequest)]
        assert len(processes) == len(set(processes)), "one message for each process"
        return set(processes)


def events(active: Active) -> list[Event | OmniError]:
    return active.events.collect()


def test_a_request_enters_at_the_entry() -> None:
    desk = Desk()
    active = desk.submit()
    [(process, message)] = desk.sent
    assert process == "front"
    assert isinstance(message, DataReady)
    assert (message.target, message.request_id) == ("entry", active.request_id)
    assert desk.coordinator.in_flight == 1


def test_dones_in_any_order_finish_exactly_once() -> None:
    """Processes race: a stage's end may be heard before that of the stage that fed it."""
    desk = Desk()
    for order in itertools.permutations(OPENS):
        active = desk.submit()
        for stage in order[:-1]:
            desk.done(active, stage)
            assert not active.events.collect(), (order, stage)
        desk.done(active, order[-1])
        [finished] = events(active)
        assert isinstance(finished, Finished)
        assert active.ended
    assert desk.coordinator.in_flight == 0
    assert desk.aborted() == set()


def test_ends_that_ride_with_the_last_one_count_as_if_told_alone() -> None:
    desk = Desk()
    apart, together = desk.submit("text"), desk.submit("text")
    for stage in SILENT:
        desk.done(apart, stage, opened=SILENT[stage])
    times = {"start_s": together.submitted_s + 1, "first_output_s": None}
    *before, last = (
        Done(
            request_id=together.request_id,
            stage=stage,
            opened=opened,
            **times,
            end_s=together.submitted_s + 2,
        )
        for stage, opened in SILENT.items()
    )
    desk.coordinator.handle(replace(last, before=tuple(before)))
    [[one], [other]] = [events(apart), events(together)]
    assert isinstance(one, Finished)
    assert isinstance(other, Finished)
    assert [span.stage for span in one.timeline] == [span.stage for span in other.timeline]
    assert desk.coordinator.in_flight == 0


@pytest.mark.parametrize(
    "false",
    [
        {"stage": "nowhere"},
        {"stage": "entry", "opened": ("nowhere",)},
        {"stage": "entry", "before": (END_NOWHERE,)},
    ],
)
def test_the_end_of_a_stage_that_no_request_visits_fails_the_request(false: dict[str, Any]) -> None:
    desk = Desk()
    active = desk.submit()
    base = {"start_s": 0.0, "first_output_s": None, "end_s": 0.0}
    desk.coordinator.handle(Done(request_id=active.request_id, **base, **false))
    [error] = events(active)
    assert isinstance(error, ProtocolError)
    assert desk.coordinator.in_flight == 0


def test_a_text_request_needs_no_voice_and_ends_without_it() -> None:
    desk = Desk()
    active = desk.submit("text")
    assert set(active.pins) == {"entry", "image", "join", "think", "detok"}
    for stage, opened in SILENT.items():
        assert not active.ended
        desk.done(active, stage, opened=opened)
    assert isinstance(events(active)[0], Finished)


def test_finished_sums_usage_and_sorts_the_timeline() -> None:
    desk = Desk()
    active = desk.submit("text")
    start = active.submitted_s
    desk.done(
        active,
        "detok",
        usage=Usage(text_tokens=5),
        finish_reason="length",
        start_s=start + 3,
        first_output_s=start + 3.5,
        end_s=start + 4,
    )
    desk.done(active, "think", opened=("detok",), usage=Usage(prompt_tokens=7), start_s=start + 2)
    desk.done(active, "join", finish_reason=None, start_s=start + 1)
    desk.done(active, "entry", opened=("join",), start_s=start + 0.5)
    [finished] = events(active)
    assert isinstance(finished, Finished)
    assert finished.finish_reason == "length"
    assert finished.usage == Usage(prompt_tokens=7, text_tokens=5)
    assert [span.stage for span in finished.timeline] == ["entry", "join", "think", "detok"]
    last = finished.timeline[-1]
    assert (last.start_s, last.end_s) == pytest.approx((3, 4))
    assert last.first_output_s == pytest.approx(3.5)
    assert finished.timeline[0].first_output_s is None


def test_only_the_text_terminal_gives_the_finish_reason() -> None:
    desk = Desk()
    active = desk.submit()
    for stage in OPENS:
        desk.done(active, stage, finish_reason="length" if stage == "voice" else "stop")
    [finished] = events(active)
    assert isinstance(finished, Finished)
    assert finished.finish_reason == "stop"
    assert finished.audio_finish_reason == "length"


@pytest.mark.parametrize("cut", [None, "audio"])
def test_a_stage_before_the_last_may_say_that_audio_is_not_whole(cut: Modality | None) -> None:
    desk = Desk()
    spoken, written = desk.submit(), desk.submit("text")
    for stage in OPENS:
        desk.done(spoken, stage, cut=cut if stage == "talk" else None)
    for stage, opened in SILENT.items():
        reason = "length" if stage == "detok" else None
        desk.done(written, stage, opened=opened, finish_reason=reason)
    [said], [read] = events(spoken), events(written)
    assert isinstance(said, Finished)
    assert isinstance(read, Finished)
    whole = "stop" if cut is None else "length"
    assert (said.finish_reason, said.audio_finish_reason) == (whole, whole), "there was no text"
    assert (read.finish_reason, read.audio_finish_reason) == ("length", None)


def test_events_pass_in_order() -> None:
    desk = Desk()
    active = desk.submit()
    deltas = [TextDelta(text=text) for text in "abc"]
    for delta in deltas:
        desk.coordinator.handle(Emit(request_id=active.request_id, stage="detok", event=delta))
    assert events(active) == deltas


def test_a_failure_aborts_every_process_the_request_may_be_in() -> None:
    desk = Desk()
    active, other = desk.submit("text"), desk.submit()
    error = MediaError("torn").info("image")
    desk.coordinator.handle(Fail(request_id=active.request_id, stage="image", error=error))
    [raised] = events(active)
    assert isinstance(raised, MediaError)
    assert raised.message == "torn"
    assert desk.aborted() == {"front", "image", "think", "detok"}
    assert events(other) == []
    desk.done(active, "entry")
    desk.coordinator.handle(Fail(request_id=active.request_id, stage="image", error=error))
    assert events(active) == []


def test_releasing_early_aborts_and_releasing_late_does_not() -> None:
    desk = Desk()
    early, late = desk.submit(), desk.submit("text")
    for stage, opened in SILENT.items():
        desk.done(late, stage, opened=opened)
    desk.coordinator.release(late)
    assert desk.aborted() == set()
    desk.coordinator.release(early)
    assert desk.aborted() == {"front", "image", "think", "detok", "talk", "voice"}
    desk.coordinator.release(early)
    assert desk.coordinator.in_flight == 0


def test_ids_are_unique_though_names_are_not() -> None:
    desk = Desk()
    ids = [desk.submit(name="same").request_id for _ in range(3)]
    ids += [desk.submit().request_id for _ in range(3)]
    assert len(set(ids)) == 6
    assert all(request_id.startswith("same#") for request_id in ids[:3])


def test_a_dead_process_fails_who_needs_it_and_nobody_else() -> None:
    desk = Desk()
    spoken, silent = desk.submit(), desk.submit("text")
    desk.die("voice", "exit code 3")
    [error] = events(spoken)
    assert isinstance(error, StageDiedError)
    assert "'voice' ended" in error.message
    assert "exit code 3" in error.message
    assert events(silent) == []
    assert desk.aborted() == {"front", "image", "think", "detok", "talk"}
    with pytest.raises(NotReadyError, match="not ready: voice"):
        desk.submit()
    desk.submit("text")


def test_a_process_that_dies_takes_all_its_stages_along() -> None:
    desk = Desk()
    active = desk.submit("text")
    desk.die("front", "exit code 1")
    assert isinstance(events(active)[0], StageDiedError)
    assert desk.fleet.down(OPENS) == ["entry", "join"]
    assert "front" not in desk.aborted()


def test_requests_wait_until_the_stages_they_need_are_ready() -> None:
    desk = Desk(ready=False)
    for replica in desk.fleet.replicas:
        replica.state = "starting" if replica.name == "detok" else "ready"
    with pytest.raises(NotReadyError, match="not ready: detok; retry"):
        desk.submit("text")
    desk.fleet.of_stage("detok")[0].state = "ready"
    desk.submit("text")


def test_modalities_are_checked() -> None:
    desk = Desk()
    with pytest.raises(RequestError, match="does not produce video; ask for audio, text") as caught:
        desk.submit("video")
    assert caught.value.param == "modalities"
    with pytest.raises(RequestError, match="name a modality: audio, text"):
        desk.coordinator.submit(Request(messages=(), params=RequestParams(modalities=())))
    assert desk.sent == []


def test_closing_fails_what_runs_and_refuses_what_comes() -> None:
    desk = Desk()
    active = desk.submit()
    desk.coordinator.close(NotReadyError("shutting down"))
    assert isinstance(events(active)[0], NotReadyError)
    with pytest.raises(NotReadyError, match="shutting down"):
        desk.submit()


def test_one_request_can_be_failed_by_name() -> None:
    desk = Desk()
    active, other = desk.submit(), desk.submit()
    desk.coordinator.fail_request(active.request_id, RequestError("bad"))
    desk.coordinator.fail_request("nobody", RequestError("bad"))
    assert [type(event) for event in events(active)] == [RequestError]
    assert events(other) == []


def test_strangers_change_nothing() -> None:
    desk = Desk()
    error = ErrorInfo(kind="StageError", message="x")
    desk.coordinator.handle(Fail(request_id="nobody", stage="think", error=error))
    assert desk.sent == []


@pytest.mark.parametrize("leaves", [False, True])
def test_a_request_that_fails_again_while_it_is_aborted_ends_once(leaves: bool) -> None:
    desk = Desk()

    def refuse(process: str, message: ToStage) -> None:
        if isinstance(message, AbortRequest):
            desk.coordinator.fail_request(message.request_id, StageDiedError("not reached"))

    coordinator = desk.coordinator = Coordinator(STAGES, "entry", desk.fleet, refuse)
    active = desk.submit()
    if leaves:
        coordinator.release(active)
        assert events(active) == []
    else:
        coordinator.fail_request(active.request_id, RequestError("bad"))
        [error] = events(active)
        assert isinstance(error, RequestError)
    assert coordinator.in_flight == 0
    assert {replica.load for replica in desk.fleet.replicas} == {0}
