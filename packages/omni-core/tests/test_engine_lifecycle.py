"""Admission, stopping, streaming input, abort and page accounting of the torch engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_core.engine.base import (
    Batch,
    EngineRequest,
    KVSpec,
    RequestFailedError,
    Sequence,
    StepOutput,
)
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig, engine_config
from omni_core.engine.torch_engine.kv import PAGE_SIZE
from omni_core.errors import ConfigError, ContextLengthError, MediaError, RequestError
from omni_core.specs import Ref, StageConfig, StageContext
from omni_core.types import RequestParams, SamplingParams

MAX_LEN = 128
PAGE_BYTES = 2 * PAGE_SIZE * 4 * 4
EOS, PAD, LETTERS = 0, 1, 2
LETTER_A = ord("a")


def pages_for(rows: int) -> int:
    return -(-rows // PAGE_SIZE)


def ids(text: str) -> list[int]:
    """Lower-case letters as tokens; "." is the end token."""
    return [EOS if c == "." else LETTERS + ord(c) - LETTER_A for c in text]


def letters(token_ids: list[int] | tuple[int, ...]) -> str:
    return "".join(chr(LETTER_A + i - LETTERS) for i in token_ids if i >= LETTERS)


class ScriptRunner:
    """Says what `EngineRequest.inputs` spells, then `PAD` for ever; the second choice is "z".

    With `feedback`, each decode step needs one chunk fed before.
    """

    kv = KVSpec(layers=1, kv_heads=1, head_dim=4, max_len=MAX_LEN)
    device, dtype, vocab_size = torch.device("cpu"), torch.float32, 28
    eos_token_ids = frozenset({EOS})
    suppress: torch.Tensor | None = None
    prefix_cache = False
    lookahead = False

    def __init__(self, feedback: bool = False) -> None:
        self.feedback = feedback
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.finished: list[bool] = []

    def prepare(self, rows: int, decode: Any) -> None:
        pass

    def open(self, seq: Sequence) -> None:
        if seq.request.inputs is None:
            raise MediaError("nothing to say")
        seq.state = {"script": ids(seq.request.inputs), "chunks": [], "more": True}
        self.opened.append(seq.request_id)

    def resume(self, seq: Sequence) -> None:
        pass

    def keep(self, seq: Sequence, start: int, stop: int) -> Any:
        return None

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None:
        pass

    def feed(self, seq: Sequence, chunk: Any) -> None:
        if chunk == "bad":
            raise MediaError("bad chunk")
        if chunk is None:
            seq.state["more"] = False
        else:
            seq.state["chunks"].append(chunk)

    def ready(self, seq: Sequence) -> bool:
        enough = len(seq.state["chunks"]) >= len(seq.tokens)
        return not self.feedback or enough or not seq.state["more"]

    def forward(self, batch: Batch) -> torch.Tensor:
        rows = torch.zeros(sum(s.count for s in batch.segments), 1, 4)
        batch.attend(0, rows, rows, rows)
        scripts = [(s.seq.state["script"], len(s.seq.tokens)) for s in batch.segments if s.samples]
        nexts = [script[at] if at < len(script) else PAD for script, at in scripts]
        return torch.tensor(nexts, dtype=torch.float32)[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(hidden), self.vocab_size)
        logits[:, ids("z")[0]] = 5.0
        return logits.scatter(1, hidden.long(), 10.0)

    def collect(
        self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        self.finished += finished
        return [list(seq.state["chunks"]) for seq in seqs]

    def text(self, token_ids: list[int]) -> str:
        return letters(token_ids)

    def close(self, seq: Sequence) -> None:
        self.closed.append(seq.request_id)


def make(
    name: str, script: str | None = "", prompt_len: int = 3, strict: bool = False, **sampling: Any
) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_len=prompt_len,
        inputs=script,
        params=RequestParams(),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling}),
        strict_max_tokens=strict,
    )


def engine_of(runner: ScriptRunner, *, pages: int = 64, **limits: int) -> TorchEngine:
    return TorchEngine(runner, TorchEngineConfig(kv_budget_bytes=pages * PAGE_BYTES, **limits))


def finish(engine: TorchEngine) -> list[StepOutput]:
    outputs = []
    while engine.runnable():
        outputs += engine.step()
    return outputs


def reply(script: str, **sampling: Any) -> tuple[str, str | None, list[StepOutput]]:
    """What is released in all, the finish reason, and the outputs."""
    engine = engine_of(ScriptRunner())
    engine.add(make("r", script, **sampling))
    outputs = finish(engine)
    assert [o.index for o in outputs] == list(range(len(outputs)))
    assert engine.stats().kv_pages_used == 0
    return letters(sum((o.released for o in outputs), ())), outputs[-1].finish_reason, outputs


def test_the_end_token_stops_and_is_not_released() -> None:
    text, reason, outputs = reply("hey.more")
    assert (text, reason) == ("hey", "stop")
    assert [o.token for o in outputs] == ids("hey.")
    assert outputs[-1].released == ()
    assert not any(o.held for o in outputs)


def test_ignore_eos_makes_the_end_token_an_ordinary_one() -> None:
    _, reason, outputs = reply("a.b", ignore_eos=True, max_tokens=3)
    assert reason == "length"
    assert [o.released for o in outputs] == [(i,) for i in ids("a.b")]


def test_stop_token_ids_stop_and_are_not_released() -> None:
    assert reply("abcd", stop_token_ids=tuple(ids("c")))[:2] == ("ab", "stop")


def test_max_tokens_ends_with_length_and_counts_every_token() -> None:
    assert reply("abcdefgh", max_tokens=4)[:2] == ("abcd", "length")
    assert reply("abc.", max_tokens=4)[:2] == ("abc", "stop")


def test_min_tokens_keeps_end_tokens_away() -> None:
    stops = tuple(ids("y"))
    assert reply("a.y.q.", min_tokens=4, stop_token_ids=stops)[:2] == ("azzzq", "stop")


def test_suppressed_tokens_are_never_sampled() -> None:
    runner = ScriptRunner()
    runner.suppress = torch.zeros(runner.vocab_size, dtype=torch.bool)
    runner.suppress[ids("b")] = True
    engine = engine_of(runner)
    engine.add(make("r", "abc."))
    assert [o.token for o in finish(engine)] == ids("azc.")


@pytest.mark.parametrize(
    ("script", "stop", "held", "released"),
    [
        ("abendx", ["end"], [0, 0, 1, 1, 0], ["a", "b", "", "", ""]),
        ("aenx.", ["end"], [0, 1, 1, 0, 0], ["a", "", "", "enx", ""]),
        ("aen.", ["end"], [0, 1, 1, 0], ["a", "", "", "en"]),
        ("eend", ["end", "q"], [1, 1, 1, 0], ["", "e", "", ""]),
    ],
)
def test_stop_strings_across_tokens(
    script: str, stop: list[str], held: list[int], released: list[str]
) -> None:
    _, reason, outputs = reply(script, stop=tuple(stop))
    assert reason == "stop"
    assert [o.held for o in outputs] == [bool(h) for h in held]
    assert [letters(o.released) for o in outputs] == released


def test_what_is_held_at_the_last_token_is_released() -> None:
    assert reply("aben", stop=("end",), max_tokens=4)[:2] == ("aben", "length")
    assert reply("abend", stop=("end",), max_tokens=5)[:2] == ("ab", "stop")


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = engine_of(ScriptRunner(), pages=4)
    with pytest.raises(ContextLengthError, match=r"128 tokens.* at most 127"):
        engine.add(make("a", prompt_len=128))
    with pytest.raises(ContextLengthError, match=r"100 tokens.* 50,.* 128 tokens.* at most 28"):
        engine.add(make("a", prompt_len=100, max_tokens=50, strict=True))
    with pytest.raises(ContextLengthError, match=r"need 5 KV pages, but the cache has 4"):
        engine.add(make("a", prompt_len=60, max_tokens=5))
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.add(make("a", prompt_len=0))
    with pytest.raises(RequestError, match="at least 1, not 0"):
        engine.add(make("a", max_tokens=0))
    assert engine.stats().waiting == 0
    assert not engine.runnable()


def test_a_default_max_tokens_ends_where_the_context_does() -> None:
    engine = engine_of(ScriptRunner())
    engine.add(make("a", "b" * 50, prompt_len=100, max_tokens=50))
    engine.add(make("b", "b" * 50, prompt_len=100, max_tokens=None))
    outputs = finish(engine)
    assert [o.request_id for o in outputs].count("a") == 28
    assert [o.request_id for o in outputs].count("b") == 28
    assert {o.finish_reason for o in outputs[-2:]} == {"length"}


def test_requests_are_admitted_in_order_as_memory_allows() -> None:
    runner = ScriptRunner()
    engine = engine_of(runner, pages=4)
    for name, prompt_len in (("a", 40), ("big", 40), ("small", 3)):
        engine.add(make(name, "xy.", prompt_len=prompt_len))
    engine.step()
    assert runner.opened == ["a"]
    assert (engine.stats().waiting, engine.stats().kv_pages_used) == (2, pages_for(48))
    finish(engine)
    assert runner.opened == ["a", "big", "small"] == runner.closed


def test_one_request_the_runner_refuses_fails_alone() -> None:
    runner = ScriptRunner()
    engine = engine_of(runner)
    for name, script in (("good", "ab."), ("bad", None), ("late", "cd.")):
        engine.add(make(name, script))
    engine.add(make("fed", "ef."))
    engine.feed("fed", "bad")
    failed, outputs = [], []
    while engine.runnable():
        try:
            outputs += engine.step()
        except RequestFailedError as exc:
            failed.append((exc.request_id, exc.error.message))
    assert failed == [("bad", "nothing to say"), ("fed", "bad chunk")]
    assert [o.request_id for o in outputs] == ["good", "late"] * 3
    assert runner.closed == ["fed", "good", "late"]
    assert engine.stats().kv_pages_used == 0


def test_an_id_in_use_is_refused_until_it_is_free() -> None:
    engine = engine_of(ScriptRunner())
    for _ in range(2):
        engine.add(make("a", "x."))
        with pytest.raises(ValueError, match="still in the engine"):
            engine.add(make("a"))
        engine.step()
        with pytest.raises(ValueError, match="still in the engine"):
            engine.add(make("a"))
        finish(engine)


def test_a_runner_that_waits_for_chunks_is_left_out_until_it_has_them() -> None:
    engine = engine_of(ScriptRunner(feedback=True))
    engine.add(make("a", "abc."))
    engine.add(make("b", "xyz."))
    engine.feed("a", 1)
    assert [o.request_id for o in engine.step()] == ["a", "b"]
    assert engine.runnable()
    assert [(o.request_id, o.data) for o in engine.step()] == [("a", [1])]
    assert not engine.runnable()
    assert engine.step() == []
    engine.feed("b", 7)
    assert engine.runnable()
    assert [(o.request_id, o.data) for o in engine.step()] == [("b", [7])]
    assert not engine.runnable()
    for name in ("a", "b", "nobody"):
        engine.feed(name, None)
    assert letters([o.token for o in finish(engine)]) == "cz"
    assert engine.stats().running == 0


def test_a_runner_that_looks_ahead_is_always_ready() -> None:
    class Unasked(ScriptRunner):
        lookahead = True

        def ready(self, seq: Sequence) -> bool:
            raise AssertionError("asked")

    engine = engine_of(Unasked())
    engine.add(make("r", "abc."))
    assert [o.token for o in finish(engine)] == ids("abc.")


def test_chunks_for_a_waiting_request_reach_it_in_order() -> None:
    engine = engine_of(ScriptRunner(feedback=True), max_running=1)
    engine.add(make("a", "."))
    engine.add(make("b", "x."))
    for chunk in (1, 2, None):
        engine.feed("b", chunk)
    assert [(o.request_id, o.data) for o in finish(engine)] == [
        ("a", []),
        ("b", [1, 2]),
        ("b", [1, 2]),
    ]


def test_abort_frees_everything_at_any_moment() -> None:
    runner = ScriptRunner()
    engine = engine_of(runner, pages=8, max_running=3, max_batch_tokens=8)
    for name, prompt_len in (("decoding", 4), ("prefilling", 50), ("waiting", 60)):
        engine.add(make(name, "abcdef", prompt_len=prompt_len))
    assert [o.request_id for o in engine.step()] == ["decoding"]
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    for _ in range(2):
        engine.abort("prefilling")
        engine.abort("nobody")
    assert runner.closed == ["prefilling"]
    assert engine.stats().kv_pages_used == pages_for(4 + 8)
    engine.abort("waiting")
    engine.abort("decoding")
    assert engine.stats().kv_pages_used == engine.stats().running == engine.stats().waiting == 0
    assert not engine.runnable()
    assert runner.closed == ["prefilling", "decoding"] == sorted(runner.opened, reverse=True)
    engine.add(make("decoding", "b."))
    assert letters([o.token for o in finish(engine)]) == "b"


def test_limits_that_cannot_work_are_refused_at_load() -> None:
    with pytest.raises(ConfigError, match="max_batch_tokens"):
        TorchEngineConfig(max_running=8, max_batch_tokens=4)
    with pytest.raises(ConfigError, match="max_running must be at least 1"):
        TorchEngineConfig(max_running=0)
    with pytest.raises(ConfigError, match="holds no page"):
        TorchEngine(ScriptRunner(), TorchEngineConfig(kv_budget_bytes=PAGE_BYTES - 1))


def test_the_pool_is_no_larger_than_all_running_sequences_can_fill() -> None:
    engine = TorchEngine(ScriptRunner(), TorchEngineConfig(max_running=2))
    assert engine.stats().kv_pages_total == 2 * pages_for(MAX_LEN)


def test_a_stage_sets_the_limits_by_its_options() -> None:
    def configured(**options: Any) -> TorchEngineConfig:
        stage = StageConfig(name="talk", factory=Ref("a:b"), options=options, memory_fraction=0.5)
        ctx = StageContext(
            stage=stage,
            model_path="",
            device="cpu",
            dtype="float32",
            ar_engine="torch",
            report=lambda _: None,
        )
        return engine_config(ctx, ScriptRunner())

    assert configured() == TorchEngineConfig()
    assert configured(max_running="3", other=1) == TorchEngineConfig(max_running=3)
    assert configured(lookahead=False, coalesce_ms="2.5", prefix_cache="FALSE") == (
        TorchEngineConfig(lookahead="off", coalesce_ms=2.5, prefix_cache=False)
    )
    for options, message in (
        ({"max_batch_tokens": "many"}, "'talk': max_batch_tokens must be a whole number"),
        ({"prefix_cache": "maybe"}, "'talk': prefix_cache must be true or false, not 'maybe'"),
        ({"prefix_cache": True}, "'talk': prefix_cache is true, but .* cannot be shared"),
        ({"lookahead": True}, "lookahead is on, but the model .*; set lookahead: off"),
        ({"lookahead": "ahead"}, "lookahead must be auto, on or off, not 'ahead'"),
        ({"coalesce_ms": "nan"}, "coalesce_ms must be 0 or more"),
        ({"prefill_chunk": 0}, "prefill_chunk must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            configured(**options)


def test_a_lone_prompt_waits_for_company_while_nothing_runs() -> None:
    now = [100.0]
    config = TorchEngineConfig(coalesce_ms=20)
    engine = TorchEngine(ScriptRunner(), config, clock=lambda: now[0])
    assert engine.wakes_in_s() is None
    engine.add(make("first", "ab."))
    assert not engine.runnable()
    assert engine.step() == []
    now[0] += 0.015
    assert engine.wakes_in_s() == pytest.approx(0.005)
    now[0] += 0.005
    assert engine.runnable()
    assert engine.wakes_in_s() is None
    assert [o.request_id for o in engine.step()] == ["first"]
    engine.add(make("joins", "c."))
    assert [o.request_id for o in engine.step()] == ["first", "joins"]
    finish(engine)
    for name in ("a", "b"):
        assert not engine.runnable()
        engine.add(make(name, "x."))
    assert [o.request_id for o in engine.step()] == ["a", "b"]
    finish(engine)
    engine.add(make("gone", "x."))
    engine.abort("gone")
    assert engine.wakes_in_s() is None


def test_prompts_are_cut_and_the_cuts_are_counted() -> None:
    engine = engine_of(ScriptRunner(), prefill_chunk=10)
    engine.add(make("short", "abcdefgh", prompt_len=4))
    engine.add(make("long", "abcdefgh", prompt_len=30))
    steps = [[o.request_id for o in engine.step()] for _ in range(4)]
    assert steps == [["short"], ["short"], ["short"], ["short", "long"]]
    assert engine.stats().cut_prompts == 3
