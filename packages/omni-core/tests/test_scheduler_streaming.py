"""StreamingScheduler: cadence, order, interleaving, aborts and failures."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omni_core.errors import MediaError, StageError
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, InboxItem, Work
from omni_core.scheduler.cadence import Cadence
from omni_core.scheduler.streaming import StreamingScheduler
from omni_core.testing.fakes import Call, RecordingOutbox, running
from omni_core.types import AudioDelta, FloatArray, IntArray, Payload, RequestParams


@dataclass
class Recorder:
    """A vocoder whose samples are the codes; the state is the name in the payload."""

    sample_rate: int = 16_000
    max_replies: int | None = None
    pushes: list[dict[str, list[int]]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    tail: float | None = None
    broken: str = ""
    """The method that raises."""
    poison: int = -1
    """A code that no push may hold."""
    last: int = -1
    """The code that sets `got_last`."""
    got_last: threading.Event = field(default_factory=threading.Event)

    def open(self, params: RequestParams, payload: Payload) -> str:
        if self.broken == "open":
            raise KeyError("missing")
        if "refuse" in payload:
            raise MediaError("refused")
        return str(payload["name"])

    def push(self, states: list[str], codes: list[IntArray]) -> list[FloatArray]:
        if self.broken == "push" or any(self.poison in c for c in codes):
            raise ValueError("boom")
        self.pushes.append(dict(zip(states, (c[0].tolist() for c in codes), strict=True)))
        if any(self.last in c for c in codes):
            self.got_last.set()
        return [c[0].astype(np.float32) for c in codes]

    def flush(self, state: str) -> FloatArray:
        if self.broken == "flush":
            raise ValueError("boom")
        return np.array([] if self.tail is None else [self.tail], dtype=np.float32)

    def close(self, state: str) -> None:
        self.closed.append(state)


def opened(name: str, **payload: Any) -> Work:
    return Work(name, RequestParams(), {"name": name, **payload})


def chunk(name: str, *codes: int) -> Chunk:
    return Chunk(name, "talker", np.array([codes], dtype=np.int64))


def ended(name: str) -> ChunksDone:
    return ChunksDone(name, "talker")


def audio_of(outbox: RecordingOutbox, name: str) -> list[float]:
    events = [call.value for call in outbox.of(name) if call.method == "emit"]
    assert all(isinstance(event, AudioDelta) and event.sample_rate == 16_000 for event in events)
    return [sample for event in events for sample in event.samples.tolist()]


def run(
    vocoder: Recorder, items: Iterable[InboxItem], until: tuple[str, str], **cadence: int
) -> tuple[StreamingScheduler, RecordingOutbox]:
    scheduler = StreamingScheduler(vocoder, cadence=Cadence(**cadence))
    with running(scheduler, items) as (_, outbox):
        outbox.wait_for(*until)
    return scheduler, outbox


def test_pushes_grow_as_the_cadence_says_and_split_chunks() -> None:
    vocoder = Recorder()
    items = [opened("a"), chunk("a", 0), chunk("a", *range(1, 10)), ended("a")]
    scheduler, outbox = run(vocoder, items, ("complete", "a"), steady_frames=4)
    assert vocoder.pushes == [{"a": [0]}, {"a": [1, 2, 3, 4]}, {"a": [5, 6, 7, 8]}, {"a": [9]}]
    assert audio_of(outbox, "a") == list(range(10))
    assert outbox.of("a")[-1] == Call("complete", "a", "stop")
    assert vocoder.closed == ["a"]
    expected = {"requests": 1, "frames": 10, "pushes": 4, "waiting": 0, "running": 0}
    assert expected.items() <= scheduler.stats().items()


def test_the_first_frame_leaves_at_once() -> None:
    vocoder = Recorder()
    with running(StreamingScheduler(vocoder), [opened("a"), chunk("a", 7)]) as (inbox, outbox):
        assert outbox.wait_for("emit", "a").value.samples.tolist() == [7.0]
        inbox.put(ended("a"))
        outbox.wait_for("complete", "a")


def test_replies_share_pushes() -> None:
    vocoder = Recorder()
    items = [
        opened("a"),
        opened("b"),
        chunk("a", 0, 1, 2),
        chunk("b", 10),
        chunk("b", 11),
        ended("b"),
        ended("a"),
    ]
    _, outbox = run(vocoder, items, ("complete", "a"), initial_frames=2, steady_frames=2)
    assert vocoder.pushes == [{"a": [0, 1], "b": [10, 11]}, {"a": [2]}]
    assert audio_of(outbox, "a") == [0, 1, 2]
    assert audio_of(outbox, "b") == [10, 11]
    done = [call.request_id for call in outbox.calls if call.method == "complete"]
    assert done == ["b", "a"]


def test_a_reply_without_audio_goes_before_those_that_play() -> None:
    class Meanwhile(Recorder):
        def push(self, states: list[str], codes: list[IntArray]) -> list[FloatArray]:
            if not self.pushes:
                for item in (opened("b"), chunk("b", 10), ended("b"), ended("a")):
                    inbox.put(item)
            return super().push(states, codes)

    vocoder = Meanwhile()
    with running(StreamingScheduler(vocoder), []) as (inbox, outbox):
        for item in (opened("a"), chunk("a", 0, 1, 2)):
            inbox.put(item)
        outbox.wait_for("complete", "a")
    assert vocoder.pushes == [{"a": [0]}, {"b": [10]}, {"a": [1, 2]}]


def test_a_push_has_no_more_frames_than_it_should() -> None:
    vocoder = Recorder()
    cadence = Cadence(initial_frames=2, steady_frames=8)
    items = [item for name in "abcd" for item in (opened(name), chunk(name, 0, 1), ended(name))]
    long = [opened("e"), chunk("e", *range(11)), ended("e")]
    scheduler = StreamingScheduler(vocoder, cadence=cadence, push_frames=5)
    with running(scheduler, [*items, *long]) as (_, outbox):
        outbox.wait_for("complete", "e")
    first = [{name: [0, 1] for name in names} for names in ("ab", "cd", "e")]
    assert vocoder.pushes == [*first, {"e": list(range(2, 10))}, {"e": [10]}]


def test_the_tail_is_flushed_before_the_end() -> None:
    items = [opened("a"), chunk("a", 1), ended("a")]
    _, outbox = run(Recorder(tail=0.5), items, ("complete", "a"))
    assert audio_of(outbox, "a") == [1.0, 0.5]


def test_a_reply_without_frames_ends_without_audio() -> None:
    vocoder = Recorder()
    items = [opened("a"), chunk("a"), ended("a")]
    _, outbox = run(vocoder, items, ("complete", "a"))
    assert outbox.of("a") == [Call("complete", "a", "stop")]
    assert vocoder.pushes == []


def test_an_aborted_reply_is_closed_and_silent() -> None:
    vocoder = Recorder()
    scheduler = StreamingScheduler(vocoder)
    with running(scheduler, [opened("a"), chunk("a", 1)]) as (inbox, outbox):
        outbox.wait_for("emit", "a")
        for item in (Abort("a"), chunk("a", 2), ended("a"), opened("b"), chunk("b", 3), ended("b")):
            inbox.put(item)
        outbox.wait_for("complete", "b")
    assert audio_of(outbox, "a") == [1.0]
    assert [call.method for call in outbox.of("a")] == ["emit", "released"]
    assert vocoder.closed == ["a", "b"]
    assert scheduler.stats()["running"] == 0


def test_close_frees_the_states_of_open_replies() -> None:
    vocoder = Recorder()
    with running(StreamingScheduler(vocoder), [opened("a"), chunk("a", 1)]) as (_, outbox):
        outbox.wait_for("emit", "a")
    assert vocoder.closed == ["a"]


def test_a_refused_reply_keeps_its_error() -> None:
    items = [opened("a", refuse=True), chunk("a", 1), ended("a"), opened("b"), ended("b")]
    _, outbox = run(Recorder(), items, ("complete", "b"))
    [failed] = outbox.of("a")
    assert type(failed.value) is MediaError


@pytest.mark.parametrize(
    ("method", "message"),
    [("open", "KeyError: 'missing'"), ("push", "ValueError: boom"), ("flush", "ValueError: boom")],
)
def test_a_vocoder_that_raises_fails_the_reply_and_not_the_stage(method: str, message: str) -> None:
    vocoder = Recorder(broken=method)
    scheduler = StreamingScheduler(vocoder)
    with running(scheduler, [opened("a"), chunk("a", 1), ended("a")]) as (inbox, outbox):
        error = outbox.wait_for("fail", "a").value
        vocoder.broken = ""
        for item in (opened("b"), chunk("b", 2), ended("b")):
            inbox.put(item)
        outbox.wait_for("complete", "b")
    assert isinstance(error, StageError)
    assert error.message == message
    assert outbox.of("a")[-1].method == "fail"
    assert audio_of(outbox, "b") == [2.0]
    assert sorted(vocoder.closed) == (["b"] if method == "open" else ["a", "b"])


@pytest.mark.parametrize("data", [None, [1, 2], np.zeros(3, np.int64), "codes"])
def test_a_chunk_that_is_no_codes_fails_its_reply(data: object) -> None:
    items = [opened("a"), opened("b"), Chunk("a", "talker", data), chunk("b", 1), ended("b")]
    _, outbox = run(Recorder(), items, ("complete", "b"))
    [failed] = outbox.of("a")
    assert "'talker' must stream numpy int64 (groups, frames) codes" in failed.value.message
    assert audio_of(outbox, "b") == [1.0]


def test_only_the_cause_of_a_failed_push_fails() -> None:
    vocoder = Recorder(poison=66)
    items = [opened(name) for name in "abc"]
    items += [chunk("a", 1), chunk("b", 66), chunk("c", 3), ended("a"), ended("c")]
    scheduler, outbox = run(vocoder, items, ("complete", "c"))
    assert audio_of(outbox, "a") == [1.0]
    assert audio_of(outbox, "c") == [3.0]
    [failed] = outbox.of("b")
    assert failed.value.message == "ValueError: boom"
    assert sorted(vocoder.closed) == ["a", "b", "c"]
    assert scheduler.stats()["running"] == 0


def test_replies_beyond_the_slots_wait_their_turn_and_can_be_aborted() -> None:
    vocoder = Recorder(max_replies=1)
    items = [opened(name) for name in "abc"]
    items += [chunk(name, ord(name)) for name in "abc"]
    with running(StreamingScheduler(vocoder), items) as (inbox, outbox):
        outbox.wait_for("emit", "a")
        for item in (ended("b"), Abort("c"), ended("a")):
            inbox.put(item)
        outbox.wait_for("complete", "b")
    assert vocoder.pushes == [{"a": [97]}, {"b": [98]}]
    assert vocoder.closed == ["a", "b"]
    assert [call.method for call in outbox.of("c")] == ["released"]


def test_frames_go_out_when_the_listener_would_run_dry() -> None:
    """One frame waits for three more that never come, nor does the end; audio is 62 us a frame."""
    vocoder = Recorder(last=3)
    scheduler = StreamingScheduler(vocoder, cadence=Cadence(initial_frames=1, steady_frames=8))
    with running(scheduler, [opened("a"), *[chunk("a", i) for i in range(4)]]) as (_, outbox):
        assert vocoder.got_last.wait(10)
    assert audio_of(outbox, "a") == [0, 1, 2, 3]
    assert vocoder.pushes == [{"a": [0]}, {"a": [1, 2]}, {"a": [3]}]
