"""The torch engine short of memory: sharing, eviction, retraction and look-ahead change no token.

The model adds up its rows, exactly, so one wrong page changes what is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, target
from hypothesis import strategies as st

from omni_core.engine.base import Batch, EngineRequest, EngineStats, KVSpec, Sequence, StepOutput
from omni_core.engine.common.transfer import HostCopy
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig
from omni_core.errors import ConfigError
from omni_core.types import RequestParams, SamplingParams

VOCAB, MAX_LEN, PAGE = 40, 96, 16
PAGE_BYTES = 2 * PAGE * 4 * 4
EOS = frozenset({0, 7, 19})
MEDIA = 100
"""Prompt values from here on are no tokens; their keys are negative."""


@dataclass(slots=True)
class Said:
    """`Sequence.state`: a prompt, what was fed, and which prompt rows were computed or restored."""

    prompt: list[int]
    first: int
    """The first row that waits for a chunk: after the prompt, or its last if that is open."""
    chunks: list[int] = field(default_factory=list)
    more: bool = True
    seen: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: EngineRequest) -> Said:
        return cls(list(request.inputs), request.prompt_len - request.open_prompt)

    def value(self, row: int, token: int) -> int:
        frame = row - self.first
        token = self.prompt[row] if row < len(self.prompt) else token
        return token + (self.chunks[frame] if 0 <= frame < len(self.chunks) else 0)


class SumRunner:
    """An `ARRunner` whose attention averages integers, which multiplied by their number are exact.

    With `feedback`, a chunk for each frame is added to its token, and to the last row of an open
    prompt.
    """

    kv = KVSpec(layers=1, kv_heads=1, head_dim=4, max_len=MAX_LEN)
    device, dtype, vocab_size = torch.device("cpu"), torch.float32, VOCAB
    suppress: torch.Tensor | None = None
    eos_token_ids = EOS

    def __init__(self, feedback: bool = False) -> None:
        self.feedback = feedback
        self.prefix_cache = self.lookahead = not feedback
        self.rows = 0
        self.log: list[str] = []
        """A "forward" for each, and what tests add."""

    def prepare(self, rows: int, decode: Any) -> None:
        self.rows = rows

    def open(self, seq: Sequence) -> None:
        assert 0 <= seq.row < self.rows
        seq.state = Said.of(seq.request)

    def resume(self, seq: Sequence) -> None:
        assert 0 <= seq.row < self.rows

    def keep(self, seq: Sequence, start: int, stop: int) -> Any:
        return {row: seq.state.seen[row] for row in range(start, stop) if row in seq.state.seen}

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None:
        assert all(start <= row < stop for row in kept)
        seq.state.seen |= kept

    def feed(self, seq: Sequence, chunk: Any) -> None:
        if chunk is None:
            seq.state.more = False
        else:
            seq.state.chunks.append(chunk)

    def ready(self, seq: Sequence) -> bool:
        frame = seq.computed - seq.state.first
        return not self.feedback or not seq.state.more or frame < len(seq.state.chunks)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.log.append("forward")
        assert batch.rows.tolist() == [s.seq.row for s in batch.segments[: batch.decodes]]
        newest = batch.tokens.tolist()
        values, positions, last = [], [], []
        for place, s in enumerate(batch.segments):
            said: Said = s.seq.state
            rows = range(s.start, s.start + s.count)
            if place < batch.decodes:
                values.append(said.value(s.start, newest[place]))
                said.seen[s.start] = newest[place]
            else:
                known = said.prompt + s.seq.tokens
                said.seen |= {row: said.prompt[row] for row in rows if row < len(said.prompt)}
                values += [said.value(row, known[row]) for row in rows]
            positions += rows
            last += [len(values) - 1] * s.samples
        v = features(torch.tensor(values), torch.tensor(positions))[:, None]
        mean = batch.attend(0, torch.zeros_like(v), torch.zeros_like(v), v)[last, 0]
        counts = torch.tensor(positions)[last] + 1
        return (mean * counts[:, None]).round()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits_of(hidden)

    def collect(
        self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        assert len(hidden) == len(seqs) == len(finished)
        for seq in seqs:
            said: Said = seq.state
            if not self.feedback:
                assert [said.seen[row] for row in range(len(said.prompt))] == said.prompt
        return [int(row[0]) for row in hidden]

    def text(self, token_ids: list[int]) -> str:
        return "".join(chr(ord("A") + i) for i in token_ids)

    def close(self, seq: Sequence) -> None:
        assert seq.state is not None
        seq.state = None


def features(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Small integers (N, 4) of rows."""
    columns = (
        torch.ones_like(values),
        values + 1,
        (values + 1) * (positions + 1) % 97,
        (values + 7) * (positions + 3) % 89,
    )
    return torch.stack(columns, dim=1).float()


def logits_of(sums: torch.Tensor) -> torch.Tensor:
    mixed = sums @ torch.tensor([1.0, 7.0, 3.0, 5.0])
    tokens = torch.arange(1, VOCAB + 1)
    return (mixed[:, None] + 1) * tokens % 101 / 9


def request_of(name: str, prompt: tuple[int, ...], **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_len=len(prompt),
        inputs=prompt,
        params=RequestParams(),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **sampling}),
        prompt_token_ids=tuple(value for value in prompt if value < VOCAB),
        row_keys=np.array([v if v < MEDIA else -v for v in prompt], dtype=np.int64),
    )


def engine_of(runner: SumRunner, pages: int = 64, **options: Any) -> TorchEngine:
    config = TorchEngineConfig(kv_budget_bytes=pages * PAGE_BYTES, **options)
    return TorchEngine(runner, config)


def drain(engine: TorchEngine) -> list[StepOutput]:
    outputs = []
    while engine.runnable():
        outputs += engine.step()
    return outputs


def spoken(outputs: list[StepOutput]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for output in outputs:
        assert output.index == len(tokens.setdefault(output.request_id, []))
        tokens[output.request_id].append(output.token)
    return tokens


def greedy(request: EngineRequest, chunks: tuple[int, ...] = ()) -> list[int]:
    """The reply by the model's definition, without an engine."""
    said, tokens = Said.of(request), list[int]()
    said.chunks = list(chunks)
    for _ in range(request.sampling.max_tokens or 0):
        rows = [said.value(row, known) for row, known in enumerate(said.prompt + tokens)]
        sums = features(torch.tensor(rows), torch.arange(len(rows))).sum(0)
        tokens.append(int(logits_of(sums[None]).argmax()))
        if tokens[-1] in EOS and not request.sampling.ignore_eos:
            break
    return tokens


def text(length: int, start: int = 1) -> tuple[int, ...]:
    return tuple((start + 3 * i) % VOCAB for i in range(length))


STEM = text(33)
PROMPTS = (
    text(1, 5),
    STEM,
    STEM[:32],
    STEM + text(20, 2),
    (*STEM[:20], *range(MEDIA, MEDIA + 12), *text(30, 4)),
    (*STEM[:20], *range(MEDIA, MEDIA + 12), *text(40, 9)),
    (*STEM[:20], *range(MEDIA + 50, MEDIA + 62), *text(30, 4)),
    text(70, 11),
)
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"ignore_eos": True},
    {"stop": ("Z", "e", "KX"), "ignore_eos": True},
    {"temperature": 1.0, "seed": 7, "top_k": 9},
    {"temperature": 1.3, "seed": 8, "top_p": 0.9, "min_tokens": 4},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "ignore_eos": True},
    {"temperature": 0.8, "seed": 9, "repetition_penalty": 1.2, "logit_bias": {3: 4.0}},
)


@cache
def alone(prompt: int, sampling: int, max_tokens: int) -> list[int]:
    settings = {**SAMPLING[sampling], "max_tokens": max_tokens}
    request = request_of("alone", PROMPTS[prompt], **settings)
    engine = engine_of(SumRunner(), prefix_cache=False, lookahead="off")
    engine.add(request)
    return spoken(drain(engine))["alone"]


@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
def test_the_engine_says_what_the_model_defines(prompt: int) -> None:
    assert alone(prompt, 0, 20) == greedy(request_of("r", PROMPTS[prompt], max_tokens=20))


def check_idle(stats: EngineStats) -> None:
    assert stats.running == stats.waiting == stats.kv_pages_used == 0
    assert stats.kv_pages_cached <= stats.kv_pages_total


EVENTS = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, len(PROMPTS) - 1),
        st.integers(0, len(SAMPLING) - 1),
        st.integers(1, 26),
    ),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("abort"), st.integers(0, 3)),
)


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(EVENTS, min_size=5, max_size=40),
    pages=st.integers(6, 14),
    chunk=st.sampled_from([5, 16, 64]),
    lookahead=st.sampled_from(["on", "off"]),
    prefix_cache=st.booleans(),
)
def test_whatever_happens_each_reply_is_what_it_is_alone(
    events: list[tuple[Any, ...]], pages: int, chunk: int, lookahead: str, prefix_cache: bool
) -> None:
    engine = engine_of(
        SumRunner(),
        pages=pages,
        max_running=4,
        prefill_chunk=chunk,
        lookahead=lookahead,
        prefix_cache=prefix_cache,
    )
    wanted: dict[str, tuple[int, int, int]] = {}
    live: list[str] = []
    outputs: list[StepOutput] = []
    for number, (event, *values) in enumerate(events):
        match event:
            case "add":
                name, (prompt, sampling, max_tokens) = f"r{number}", values
                options = {**SAMPLING[sampling], "max_tokens": max_tokens}
                engine.add(request_of(name, PROMPTS[prompt], **options))
                wanted[name] = (prompt, sampling, max_tokens)
                live.append(name)
            case "step":
                for _ in range(values[0]):
                    new = engine.step()
                    live = [n for n in live if n not in {o.request_id for o in new if ended(o)}]
                    outputs += new
            case "abort" if live:
                name = live.pop(values[0] % len(live))
                engine.abort(name)
                del wanted[name]
        stats = engine.stats()
        assert stats.running + stats.waiting == len(live)
        assert stats.kv_pages_used + stats.kv_pages_cached <= stats.kv_pages_total == pages
        assert prefix_cache or stats.kv_pages_cached == 0
    tokens = spoken(outputs + drain(engine))
    target(float(engine.stats().retractions))
    assert {name: tokens[name] for name in wanted} == {n: alone(*w) for n, w in wanted.items()}
    check_idle(engine.stats())


def ended(output: StepOutput) -> bool:
    return output.finish_reason is not None


@settings(max_examples=30, deadline=None)
@given(
    order=st.lists(st.integers(0, 3), min_size=30, max_size=120),
    pages=st.integers(5, 9),
    opened=st.booleans(),
)
def test_sequences_that_wait_for_chunks_are_retracted_and_lose_none(
    order: list[int], pages: int, opened: bool
) -> None:
    chunks = [tuple((7 * i + j) % 23 for j in range(5 * i)) for i in range(4)]
    requests = [
        replace(
            request_of(f"r{i}", text(10 + 9 * i, i), ignore_eos=True),
            open_prompt=opened,
            row_keys=None,
        )
        for i in range(4)
    ]
    engine = engine_of(SumRunner(feedback=True), pages=pages, max_running=4)
    for request in requests:
        engine.add(request)
    left = {i: [*fed, None] for i, fed in enumerate(chunks)}
    outputs: list[StepOutput] = []
    for index in [*order, *(i for i in range(4) for _ in range(20))]:
        if left[index]:
            engine.feed(f"r{index}", left[index].pop(0))
        outputs += engine.step()
    tokens = spoken(outputs + drain(engine))
    assert tokens == {r.request_id: greedy(r, chunks[i]) for i, r in enumerate(requests)}
    check_idle(engine.stats())


@pytest.mark.parametrize("length", [1, 10, 33])
def test_the_last_row_of_an_open_prompt_waits_while_the_others_are_computed(length: int) -> None:
    runner = SumRunner(feedback=True)
    engine = engine_of(runner)
    request = replace(request_of("r", text(length), max_tokens=3), open_prompt=True, row_keys=None)
    engine.add(request)
    assert drain(engine) == []
    assert engine.stats().running == 1
    computed = len(runner.log)
    assert (computed > 0) == (length > 1)
    for chunk in (4, 9, None):
        engine.feed("r", chunk)
    outputs = drain(engine)
    assert len(runner.log) - computed == len(outputs)
    assert spoken(outputs)["r"] == greedy(request, (4, 9))
    check_idle(engine.stats())


def test_only_feedback_can_open_a_prompt() -> None:
    shared = replace(request_of("r", text(4)), open_prompt=True, row_keys=np.arange(4))
    with pytest.raises(ValueError, match="feedback"):
        engine_of(SumRunner(feedback=True)).add(shared)
    with pytest.raises(ValueError, match="feedback"):
        engine_of(SumRunner()).add(replace(shared, row_keys=None))


def test_the_newest_gives_up_its_pages_and_the_oldest_goes_on() -> None:
    engine = engine_of(SumRunner(feedback=True), pages=6, max_running=4)
    requests = [
        request_of(
            f"r{i}", text(16, i), **{**SAMPLING[sampling], "ignore_eos": True, "max_tokens": 40}
        )
        for i, sampling in enumerate((1, 6, 5, 3))
    ]
    outputs = said_to_the_end(engine, requests)
    last = [o.request_id for o in outputs if ended(o)]
    assert last[0] == "r0"
    assert engine.stats().retractions >= 3
    tokens = spoken(outputs)
    assert len(tokens["r0"]) == 40
    for request in requests:
        single = said_to_the_end(engine_of(SumRunner(feedback=True)), [request])
        assert tokens[request.request_id] == spoken(single)[request.request_id]
    check_idle(engine.stats())


def said_to_the_end(engine: TorchEngine, requests: list[EngineRequest]) -> list[StepOutput]:
    for request in requests:
        engine.add(request)
        engine.feed(request.request_id, None)
    return drain(engine)


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    runner = SumRunner()
    engine = engine_of(runner)
    prompt = PROMPTS[3]
    for i in range(4):
        engine.add(request_of(f"r{i}", prompt, max_tokens=3 + i, ignore_eos=True))
    outputs = drain(engine)
    cached = {o.request_id: o.cached_tokens for o in outputs}
    assert cached == {"r0": 0, "r1": 48, "r2": 48, "r3": 48}
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.prefix_hit_tokens) == (4 * len(prompt), 3 * 48)
    assert len({tuple(t[:3]) for t in spoken(outputs).values()}) == 1


def test_the_last_prompt_row_is_always_computed() -> None:
    engine = engine_of(SumRunner())
    for _ in range(2):
        engine.add(request_of("r", STEM[:32], max_tokens=1))
        [output] = drain(engine)
    assert output.cached_tokens == 16


def test_replies_are_cached_too_and_other_media_never_hit() -> None:
    engine = engine_of(SumRunner())
    first = request_of("first", PROMPTS[4], ignore_eos=True, max_tokens=20)
    engine.add(first)
    reply = spoken(drain(engine))["first"]
    prompt = (*PROMPTS[4], *reply, 5, 6)
    cases = {
        "same words": (prompt, 80),
        "other media": ((*prompt[:20], *range(MEDIA + 50, MEDIA + 62), *prompt[32:]), 16),
        "other end": ((*prompt[:50], *text(30, 1)), 48),
    }
    for name, (words, rows) in cases.items():
        request = request_of(name, words, max_tokens=2, ignore_eos=True)
        engine.add(request)
        outputs = drain(engine)
        assert outputs[0].cached_tokens == rows, name
        assert [o.token for o in outputs] == greedy(request), name
    assert engine.stats().kv_pages_used == 0


def test_prompts_without_keys_share_nothing() -> None:
    engine = engine_of(SumRunner())
    for _ in range(2):
        engine.add(replace(request_of("r", STEM), row_keys=None))
        assert drain(engine)[0].cached_tokens == 0
    assert engine.stats().kv_pages_cached == 0


def test_cached_pages_go_before_anyone_is_retracted() -> None:
    engine = engine_of(SumRunner(), pages=6)
    for i in range(8):
        engine.add(request_of(f"r{i}", text(60, i), max_tokens=4, ignore_eos=True))
        drain(engine)
        assert engine.stats().kv_pages_cached > 0
    assert engine.stats().retractions == 0


class Flights:
    """A device that computes when asked to, and notes in the runner's log when the host asks."""

    def __init__(self, runner: SumRunner) -> None:
        self._log = runner.log

    def __call__(self, tensors: list[torch.Tensor]) -> Flights.Copy:
        self._log.append("copy")
        return self.Copy(self._log, HostCopy(tensors))

    @dataclass
    class Copy:
        log: list[str]
        inner: HostCopy

        def wait(self) -> list[torch.Tensor]:
            self.log.append("wait")
            return self.inner.wait()


def flown(lookahead: str, requests: int) -> tuple[list[str], TorchEngine, dict[str, list[int]]]:
    runner = SumRunner()
    config = TorchEngineConfig(lookahead=lookahead)  # type: ignore[arg-type]
    engine = TorchEngine(runner, config, start_copy=Flights(runner))
    for i in range(requests):
        engine.add(request_of(f"r{i}", text(8, i), max_tokens=6, ignore_eos=True))
    tokens = spoken(drain(engine))
    check_idle(engine.stats())
    return runner.log, engine, tokens


def test_with_lookahead_the_next_step_is_launched_before_tokens_are_waited_for() -> None:
    log, engine, tokens = flown("on", requests=2)
    step = ["forward", "copy"]
    assert log == step + [*step, "wait"] * 5 + ["wait"]
    assert engine.stats().lookahead_steps == 5
    plain, engine, same = flown("off", requests=2)
    assert plain == [*step, "wait"] * 6
    assert engine.stats().lookahead_steps == 0
    assert tokens == same


def test_one_sequence_alone_is_not_worth_a_step_ahead() -> None:
    log, _, _ = flown("on", requests=1)
    assert log == ["forward", "copy", "wait"] * 6


def test_lookahead_is_for_accelerators_and_refused_with_feedback() -> None:
    assert flown("auto", requests=2)[1].stats().lookahead_steps == 0
    with pytest.raises(ConfigError, match=r"lookahead is on, but .*; set lookahead: off"):
        engine_of(SumRunner(feedback=True), lookahead="on")


def test_a_row_computed_too_often_is_dropped() -> None:
    engine = engine_of(SumRunner(), lookahead="on")
    goes = [request_of(f"goes{i}", text(9, i), max_tokens=20, ignore_eos=True) for i in range(2)]
    plain = greedy(request_of("ends", text(16, 1), ignore_eos=True))
    length = plain.index(plain[3]) + 1
    ends = request_of("ends", text(16, 1), ignore_eos=True, stop_token_ids=(plain[3],))
    for request in (ends, *goes):
        engine.add(request)
    outputs = drain(engine)
    assert spoken(outputs)["ends"] == plain[:length]
    assert all(spoken(outputs)[r.request_id] == greedy(r) for r in goes)
    assert engine.stats().tokens == len(outputs) == length + 2 * 20
    assert engine.stats().kv_pages_cached == sum(n // PAGE for n in (16 + length - 1, 28, 28))
    check_idle(engine.stats())
