"""Cadence: sizes, deadlines, and that no order of arrivals loses, repeats or holds back a frame."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, InboxItem, Work
from omni_core.scheduler.cadence import Cadence, Pace
from omni_core.scheduler.streaming import StreamingScheduler
from omni_core.testing.fakes import RecordingOutbox
from omni_core.types import FloatArray, IntArray, Payload, RequestParams

FRAME_S = 0.08
CADENCES = st.tuples(st.integers(1, 20), st.integers(0, 20)).map(
    lambda sizes: Cadence(initial_frames=sizes[0], steady_frames=sum(sizes))
)
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def test_sizes_double_up_to_the_steady_one() -> None:
    assert Cadence().sizes == (1, 2, 4, 8)
    assert Cadence(initial_frames=3, steady_frames=10).sizes == (3, 6, 10)
    assert Cadence(initial_frames=5, steady_frames=5).sizes == (5,)


@pytest.mark.parametrize("sizes", [(0, 8), (9, 8), (-1, -1)])
def test_sizes_that_never_grow_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1 and at most"):
        Cadence(initial_frames=sizes[0], steady_frames=sizes[1])


def test_a_fast_source_is_heard_at_once_and_then_decoded_in_larger_chunks() -> None:
    """A frame each 10 ms: decoded after frames 1, 3, 7, 15, 23, ..., and nobody runs dry."""
    pace, waiting, chunks = Pace(Cadence()), 0, []
    for tick in range(40):
        waiting += 1
        now_s = tick * 0.01
        if count := pace.due(waiting, ended=False, now_s=now_s):
            assert not pace.decoded(count, audio_s=count * FRAME_S, now_s=now_s)
            chunks.append(count)
            waiting -= count
    assert chunks == [1, 2, 4, 8, 8, 8, 8]


def test_a_slow_source_is_passed_on_before_the_listener_runs_dry() -> None:
    pace = Pace(Cadence(margin_s=0.04))
    assert pace.due(1, ended=False, now_s=5.0) == 1
    pace.decoded(1, audio_s=FRAME_S, now_s=5.0)
    assert pace.wake_s == pytest.approx(5.04)
    assert pace.due(1, ended=False, now_s=5.03) == 0
    assert pace.due(1, ended=False, now_s=5.041) == 1
    assert pace.decoded(1, audio_s=FRAME_S, now_s=5.2), "ran dry at 5.08"
    assert pace.audio_until_s == pytest.approx(5.28)


@PROPERTY
@given(CADENCES, st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), max_size=40))
def test_a_pace_never_takes_too_much_nor_holds_back_for_a_dry_listener(
    cadence: Cadence, arrivals: list[tuple[int, float]]
) -> None:
    pace, waiting, now_s = Pace(cadence), 0, 0.0
    for frames, pause_s in arrivals:
        waiting, now_s = waiting + frames, now_s + pause_s
        count = pace.due(waiting, ended=False, now_s=now_s)
        assert 0 <= count <= min(waiting, cadence.steady_frames)
        if pace.audio_until_s is not None and now_s >= pace.audio_until_s and waiting:
            assert count > 0
        if waiting >= cadence.steady_frames:
            assert count > 0
        if count:
            waiting -= count
            pace.decoded(count, audio_s=count * FRAME_S, now_s=now_s)
    while waiting:
        count = pace.due(waiting, ended=True, now_s=now_s)
        assert count > 0
        waiting -= count
        pace.decoded(count, audio_s=count * FRAME_S, now_s=now_s)


@dataclass
class Ledger:
    """A vocoder that keeps what it was given; a sample per frame. Its states are names."""

    sample_rate: int = 12
    max_replies: int | None = 3
    given: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    held: set[str] = field(default_factory=set)
    pushes: int = 0

    def open(self, params: RequestParams, payload: Payload) -> str:
        name = payload["name"]
        assert name not in self.held
        self.held.add(name)
        assert self.max_replies is None or len(self.held) <= self.max_replies
        return str(name)

    def push(self, states: list[str], codes: list[IntArray]) -> list[FloatArray]:
        self.pushes += 1
        assert len(set(states)) == len(states)
        assert set(states) <= self.held
        for name, frames in zip(states, codes, strict=True):
            assert frames.shape[1] > 0
            self.given[name] += frames[0].tolist()
        return [frames[0].astype(np.float32) for frames in codes]

    def flush(self, state: str) -> FloatArray:
        return np.full(1, -1, np.float32)

    def close(self, state: str) -> None:
        self.held.remove(state)


@dataclass
class Scripted(Inbox):
    """An inbox that hands over one batch of items at a time, and on a virtual clock otherwise."""

    batches: list[list[InboxItem]]
    now_s: float = 0.0

    def drain(self, *, block: bool) -> list[InboxItem]:
        if self.batches:
            return self.batches.pop(0)
        return [Close()] if block else []

    def get(self, timeout_s: float | None = None) -> InboxItem | None:
        if self.batches and self.batches[0]:
            return self.batches[0].pop(0)
        self.now_s += timeout_s or 0.0
        return None


@dataclass(frozen=True)
class Script:
    """Replies with numbered frames, some aborted, and their items mixed in some order."""

    frames: dict[str, int]
    aborted: frozenset[str]
    batches: list[list[InboxItem]]


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Each reply's items keep their order; batches mix the replies at will."""
    names = [f"r{i}" for i in range(draw(st.integers(1, 8)))]
    queues: dict[str, list[InboxItem]] = {}
    frames, aborted = {}, set()
    for name in names:
        sizes = draw(st.lists(st.integers(0, 9), max_size=6))
        ends = np.cumsum([0, *sizes])
        frames[name] = int(ends[-1])
        numbers = [np.arange(a, b)[None] for a, b in pairwise(ends)]
        items: list[InboxItem] = [Work(name, RequestParams(), {"name": name})]
        items += [Chunk(name, "talker", codes) for codes in numbers]
        if draw(st.booleans()) and draw(st.booleans()):
            aborted.add(name)
            items.insert(draw(st.integers(1, len(items))), Abort(name))
        queues[name] = [*items, ChunksDone(name, "talker")]
    order = draw(st.permutations([name for name, items in queues.items() for _ in items]))
    flat = [queues[name].pop(0) for name in order]
    cuts = draw(st.lists(st.integers(0, len(flat)), max_size=12).map(sorted))
    batches = [flat[a:b] for a, b in zip([0, *cuts], [*cuts, len(flat)], strict=True)]
    return Script(frames, frozenset(aborted), batches)


@PROPERTY
@given(CADENCES, scripts())
def test_every_frame_is_decoded_once_in_order_and_no_state_leaks(
    cadence: Cadence, script: Script
) -> None:
    ledger, outbox, inbox = Ledger(), RecordingOutbox(), Scripted(script.batches)
    scheduler = StreamingScheduler(ledger, cadence=cadence, clock=lambda: inbox.now_s)
    scheduler.run(inbox, outbox)
    assert ledger.held == set()
    for name, count in script.frames.items():
        methods = [call.method for call in outbox.of(name)]
        if name in script.aborted:
            assert "complete" not in methods
            assert ledger.given[name] == list(range(len(ledger.given[name])))
            continue
        assert methods.count("complete") == 1
        assert ledger.given[name] == list(range(count))
        samples = [n for call in outbox.of(name)[:-1] for n in call.value.samples.tolist()]
        assert samples == [*range(count), -1]
    assert scheduler.stats()["running"] == 0


@PROPERTY
@given(st.integers(2, 40), st.integers(1, 60))
def test_many_replies_take_no_more_pushes_than_one(replies: int, frames: int) -> None:
    """All that are due are served in each push, so nobody waits for another's turn."""

    def pushes(names: list[str]) -> int:
        items: list[InboxItem] = [Work(name, RequestParams(), {"name": name}) for name in names]
        items += [Chunk(name, "talker", np.arange(frames)[None]) for name in names]
        items += [ChunksDone(name, "talker") for name in names]
        ledger, inbox = Ledger(max_replies=None), Scripted([items])
        StreamingScheduler(ledger, clock=lambda: inbox.now_s).run(inbox, RecordingOutbox())
        assert all(ledger.given[name] == list(range(frames)) for name in names)
        return ledger.pushes

    assert pushes([f"r{i}" for i in range(replies)]) == pushes(["alone"])
