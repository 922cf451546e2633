"""Ranks that are told of the same calls compute the same batches, in the same order.

Needs no SGLang: here an engine that plans as freely as any, with retraction and look-ahead, plays
both ranks, and a thread is the second process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.engine.base import Batch, EngineRequest, KVSpec, RequestFailedError, Sequence
from omni_core.engine.sglang_engine.journal import (
    Journal,
    KeptElsewhere,
    LeadingEngine,
    Logging,
    Stepped,
    entries,
    follow,
)
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig
from omni_core.errors import ContextLengthError, MediaError, StageDiedError
from omni_core.types import IntArray, RequestParams, SamplingParams

VOCAB, MAX_LEN, PAGE = 16, 96, 16
PAGE_BYTES = 2 * PAGE * 4 * 4
BAD = -1
"""The first value of a prompt that the runner refuses."""


@dataclass(frozen=True)
class Words:
    """`EngineRequest.inputs`."""

    ids: IntArray
    media: Any


@dataclass
class Recorder:
    """An `ARRunner` that writes down what it computes."""

    feedback: bool
    log: list[list[tuple[str, int, int]]] = field(default_factory=list)
    """(request, first row, rows) of each segment of each batch."""

    kv = KVSpec(layers=1, kv_heads=1, head_dim=4, max_len=MAX_LEN)
    device, dtype, vocab_size = torch.device("cpu"), torch.float32, VOCAB
    suppress: torch.Tensor | None = None
    eos_token_ids = frozenset({0})

    def __post_init__(self) -> None:
        self.prefix_cache = self.lookahead = not self.feedback

    def prepare(self, rows: int, decode: Any) -> None: ...

    def open(self, seq: Sequence) -> None:
        words: Words = seq.request.inputs
        assert words.media.sum() == 500 * len(words.ids)
        if words.ids[0] == BAD:
            raise MediaError("no picture")
        seq.state = 0

    def resume(self, seq: Sequence) -> None: ...

    def keep(self, seq: Sequence, start: int, stop: int) -> Any: ...

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None: ...

    def feed(self, seq: Sequence, chunk: Any) -> None:
        seq.state += 1000 if chunk is None else 1

    def ready(self, seq: Sequence) -> bool:
        return not self.feedback or bool(seq.state > len(seq.tokens))

    def forward(self, batch: Batch) -> torch.Tensor:
        self.log.append([(s.seq.request_id, s.start, s.count) for s in batch.segments])
        last = [s.start + s.count for s in batch.segments if s.samples]
        return torch.tensor(last, dtype=torch.float32)[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return (hidden + 1) * torch.arange(1, VOCAB + 1) % 13

    def collect(self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]) -> Any:
        return [None] * len(seqs)

    def text(self, token_ids: list[int]) -> str:
        return ""

    def close(self, seq: Sequence) -> None: ...


def engine_of(runner: Recorder) -> TorchEngine:
    limits = {"kv_budget_bytes": 9 * PAGE_BYTES, "prefill_chunk": 24, "max_running": 3}
    lookahead = "off" if runner.feedback else "on"
    return TorchEngine(runner, TorchEngineConfig(**limits, coalesce_ms=0, lookahead=lookahead))


@dataclass(frozen=True)
class Ranks:
    """Two of one model."""

    leader: LeadingEngine
    logs: tuple[list[Any], list[Any]]


@contextmanager
def two_ranks(*, feedback: bool) -> Iterator[Ranks]:
    """Joined at the end: the second has then done all that the first did."""
    first, second = Recorder(feedback), Recorder(feedback)
    reader, writer = Pipe(duplex=False)
    told = (engine_of(second), entries(reader), Words, VOCAB)
    thread = threading.Thread(target=follow, args=told, daemon=True)
    thread.start()
    leader = LeadingEngine(engine_of(first), Journal([writer]), lambda error: error)
    try:
        yield Ranks(leader, (first.log, second.log))
    finally:
        writer.close()
        thread.join(10)
    assert not thread.is_alive()


def request(name: str, length: int, *, bad: bool = False, **sampling: Any) -> EngineRequest:
    ids = np.arange(length) % VOCAB
    ids[0] = BAD if bad else ids[0]
    return EngineRequest(
        request_id=name,
        prompt_len=length,
        inputs=Words(ids, torch.ones(length, 500)),
        params=RequestParams(),
        sampling=SamplingParams(temperature=0.0, **{"max_tokens": 40, **sampling}),
        row_keys=ids.astype(np.int64),
    )


EVENTS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 36)),
    st.tuples(st.just("bad"), st.integers(1, 60), st.just(1)),
    st.tuples(st.just("step"), st.integers(1, 8), st.just(0)),
    st.tuples(st.just("feed"), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("abort"), st.integers(0, 9), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(events=st.lists(EVENTS, min_size=8, max_size=50), feedback=st.booleans())
def test_both_ranks_compute_the_same_batches(
    events: list[tuple[str, int, int]], feedback: bool
) -> None:
    with two_ranks(feedback=feedback) as ranks:
        engine, names = ranks.leader, [""]
        for number, (event, first, second) in enumerate(events):
            name = names[first % len(names)]
            match event:
                case "add" | "bad":
                    names.append(f"r{number}")
                    bad = event == "bad"
                    engine.add(request(names[-1], first, bad=bad, max_tokens=second))
                case "step":
                    for _ in range(first):
                        step(engine)
                case "feed" | "end":
                    for _ in range(second or 1):
                        engine.feed(name, None if event == "end" else second)
                case "abort":
                    engine.abort(name)
        while engine.runnable():
            step(engine)
    assert ranks.logs[0] == ranks.logs[1]


def step(engine: LeadingEngine) -> None:
    try:
        engine.step()
    except RequestFailedError as failed:
        engine.abort(failed.request_id)


def test_a_constraint_stays_with_the_first_rank_and_keeps_both_from_looking_ahead() -> None:
    """Who is held to one waits for its token, which shows in what is computed when."""
    with two_ranks(feedback=False) as ranks:
        held = KeptElsewhere(VOCAB)
        for number, constraint in enumerate((None, held, None)):
            asked = request(f"r{number}", 9 + number, ignore_eos=True, max_tokens=12)
            ranks.leader.add(replace(asked, constraint=constraint))
        while ranks.leader.runnable():
            step(ranks.leader)
        assert ranks.leader.stats().lookahead_steps > 0
    assert ranks.logs[0] == ranks.logs[1]
    together = [{name for name, _, _ in batch} for batch in ranks.logs[0]]
    assert {"r0", "r2"} in together
    assert {"r0", "r1", "r2"} in together


def test_what_the_first_rank_refuses_the_others_never_hear_of() -> None:
    with two_ranks(feedback=False) as ranks:
        with pytest.raises(ContextLengthError):
            ranks.leader.add(request("long", MAX_LEN))
        ranks.leader.add(request("r", 5, max_tokens=2))
        with pytest.raises(ValueError, match="still in"):
            ranks.leader.add(request("r", 5))
        while ranks.leader.runnable():
            step(ranks.leader)
    assert ranks.logs[0] == ranks.logs[1] != []


def test_a_step_without_the_other_rank_says_why() -> None:
    reader, writer = Pipe(duplex=False)
    lost = StageDiedError("rank 1 is gone")
    leader = LeadingEngine(engine_of(Recorder(False)), Journal([writer]), lambda error: lost)
    reader.close()
    with pytest.raises(StageDiedError, match="rank 1 is gone") as raised:
        leader.step()
    assert isinstance(raised.value.__cause__, BrokenPipeError)


def test_prefixes_are_forgotten_on_every_rank() -> None:
    with two_ranks(feedback=False) as ranks:
        leader = ranks.leader
        for name in ("first", "found", "anew"):
            if name == "anew":
                leader.forget_prefixes()
            leader.add(request(name, 40, max_tokens=1))
            while leader.runnable():
                leader.step()
    mine, others = ranks.logs
    assert mine == others
    firsts: dict[str, int] = {}
    for name, start, _ in (row for batch in mine for row in batch):
        firsts.setdefault(name, start)
    assert (firsts["first"], firsts["anew"]) == (0, 0)
    assert firsts["found"] > 0


def test_prefixes_are_not_forgotten_under_requests() -> None:
    engine = engine_of(Recorder(feedback=False))
    engine.add(request("a", 40, max_tokens=1))
    with pytest.raises(ValueError, match="while there are requests"):
        engine.forget_prefixes()


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """Left as it was."""
    root = logging.getLogger()
    level = root.level
    yield root
    root.setLevel(level)


def test_ranks_log_what_the_first_one_logs(root_logger: logging.Logger) -> None:
    """They are told with its next call: until then they do nothing."""
    reader, writer = Pipe(duplex=False)
    leader = LeadingEngine(engine_of(Recorder(False)), Journal([writer]), lambda error: error)
    for level in (logging.WARNING, logging.WARNING, logging.DEBUG, logging.DEBUG):
        root_logger.setLevel(level)
        leader.step()
    writer.close()
    told = list(entries(reader))
    assert told == [
        Logging(logging.WARNING),
        *[Stepped()] * 2,
        Logging(logging.DEBUG),
        *[Stepped()] * 2,
    ]
    root_logger.setLevel(logging.ERROR)
    follow(engine_of(Recorder(False)), told, Words, VOCAB)
    assert root_logger.level == logging.DEBUG
