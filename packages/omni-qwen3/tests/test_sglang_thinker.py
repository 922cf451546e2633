"""The Thinker on SGLang against the Thinker on torch: the same outputs, whatever the engine does to
a request meanwhile. One engine for the whole file: upstream can be set up once in a process. With
`--ranks N` it is split over N, which on a CPU talk by gloo.
"""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.engine import build_sglang_engine
from omni_core.engine.base import Engine, EngineRequest, Sequence, StepOutput
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.grammar import Grammars
from omni_core.engine.torch_engine import TorchEngine
from omni_core.errors import ContextLengthError, RequestError
from omni_core.specs import StageConfig, StageContext, WeightLoader
from omni_core.text.detokenize import TokenBytes
from omni_core.types import Grammar, RequestParams, SamplingParams
from omni_qwen3 import thinker, tiny
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.rowkeys import row_keys
from omni_qwen3.thinker_prompts import ThinkerInputs

pytestmark = pytest.mark.sglang

PAGES = 14
PAGE_SIZE = 16
CHUNK = 32
PICTURE_ROWS = 40


def context(model_path: str, engine: str, ranks: int = 1) -> StageContext:
    config = load_config(model_path).thinker.decoder
    page_bytes = 2 * config.layers * config.kv_heads * config.head_dim * 4 * PAGE_SIZE
    options = {
        "kv_budget_bytes": str(PAGES * page_bytes // ranks),
        "prefill_chunk": str(CHUNK),
        "lookahead": "on",
        "max_running": "6",
    }
    return StageContext(
        stage=StageConfig(
            name="thinker",
            factory=thinker.build,
            next=("talker_ar",),
            tp_size=ranks,
            options=options,
        ),
        model_path=model_path,
        device="cpu",
        other_devices=("cpu",) * (ranks - 1),
        dtype="float32",
        ar_engine=engine,
        report=lambda message: None,
    )


@dataclass(frozen=True)
class Both:
    """The engine under test, and a fresh torch engine to compare with."""

    sglang: Engine
    torch: thinker.ThinkerRunner
    config: OmniConfig
    weights: list[WeightLoader]
    """What loads others; of a split model nothing does."""

    def alone(self, request: EngineRequest) -> list[StepOutput]:
        """What the torch engine makes of a request by itself."""
        return run(TorchEngine(self.torch), [request])[request.request_id]


@pytest.fixture(scope="module")
def both(tiny_checkpoint: str, ranks: int) -> Both:
    weights: list[WeightLoader] = []
    ctx = replace(context(tiny_checkpoint, "sglang", ranks), loads=weights.append)
    engine = build_sglang_engine(ctx, thinker.load_sglang_model(ctx))
    runner = thinker.load_runner(context(tiny_checkpoint, "torch"))
    return Both(engine, runner, load_config(tiny_checkpoint), weights)


def run(engine: Engine, requests: Iterable[EngineRequest]) -> dict[str, list[StepOutput]]:
    for request in requests:
        engine.add(request)
    outputs: dict[str, list[StepOutput]] = defaultdict(list)
    with engine.session():
        while engine.runnable():
            for output in engine.step():
                outputs[output.request_id].append(output)
    return outputs


def request(name: str, prepared: Any, *, speaks: bool = False, **sampling: Any) -> EngineRequest:
    ids = tuple(prepared["input_ids"].tolist())
    defaults = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    return EngineRequest(
        request_id=name,
        prompt_len=len(ids),
        inputs=ThinkerInputs(prepared, speaks, shares=True),
        params=RequestParams(),
        sampling=SamplingParams(**{**defaults, **sampling}),
        prompt_token_ids=ids,
        row_keys=row_keys(prepared),
    )


def text(seed: int, rows: int) -> dict[str, Any]:
    """Some words."""
    line = np.arange(rows, dtype=np.float32)
    ids = np.random.default_rng(seed).integers(5, 250, rows)
    return {"input_ids": ids, "positions": np.stack([line] * 3), "rope_delta": 0.0}


def picture(config: OmniConfig, seed: int, question: int) -> dict[str, Any]:
    """A picture across two chunks, with deepstack features and fractional positions."""
    start = config.im_start_token_id
    head = [start, config.user_token_id, 7]
    ids = [*head, *[config.thinker.image_token_id] * PICTURE_ROWS, question, 8]
    ids += [start, config.assistant_token_id, 9]
    rows = np.arange(len(head), len(head) + PICTURE_ROWS)
    positions = np.stack([np.arange(len(ids), dtype=np.float32)] * 3)
    positions[:, rows] = np.float32(3 + seed / 8)
    positions[:, rows[-1] + 1 :] += np.float32(0.5) - PICTURE_ROWS
    hidden = config.thinker.decoder.hidden_size
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": np.array(ids),
        "positions": positions,
        "rope_delta": 0.5 - PICTURE_ROWS,
        "media_index": rows,
        "media_embeds": torch.randn(PICTURE_ROWS, hidden, generator=generator),
        "media_row_keys": -1 - np.arange(PICTURE_ROWS) - 1000 * seed,
        "visual_index": rows,
        "deepstack": torch.randn(3, PICTURE_ROWS, hidden, generator=generator),
    }


def tokens(outputs: list[StepOutput]) -> list[int]:
    return [output.token for output in outputs]


def released(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.released]


SAMPLED = {
    "temperature": 0.9,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.1,
    "logit_bias": {7: 2.0},
}


def test_more_than_memory_holds_at_once_says_what_each_says_alone(both: Both) -> None:
    """Retraction, chunks, look-ahead, greedy and sampled rows, all in one batch."""
    before = both.sglang.stats()
    requests = [
        request(f"r{i}", text(i, 20 + 12 * (i % 4)), seed=i, **(SAMPLED if i % 2 else {}))
        for i in range(10)
    ]
    found = run(both.sglang, requests)
    for asked in requests:
        assert tokens(found[asked.request_id]) == tokens(both.alone(asked))
        assert found[asked.request_id][-1].finish_reason == "length"
    after = both.sglang.stats()
    assert after.retractions > before.retractions
    assert after.cut_prompts > before.cut_prompts
    assert after.lookahead_steps > before.lookahead_steps
    assert (after.waiting, after.running, after.kv_pages_used) == (0, 0, 0)


def test_rows_with_a_grammar_keep_to_it_in_any_company(both: Both, tiny_checkpoint: str) -> None:
    """Look-ahead stops for them, and retraction loses nothing of where they are."""
    spelled = TokenBytes(tiny_checkpoint)
    eos = both.torch.eos_token_ids
    grammars = Grammars(lambda: spelled.__getitem__, both.torch.vocab_size, eos)
    pairs = Grammar(kind="json_schema", text='{"type": "array", "items": {"enum": ["a", 7]}}')

    def asked(number: int) -> EngineRequest:
        name, prompt = f"g{number}", text(number, 20 + 12 * (number % 4))
        if number % 3 == 0:
            return request(name, prompt)
        held = request(name, prompt, temperature=1.0, seed=number, ignore_eos=False, min_tokens=20)
        return replace(held, constraint=grammars.compile(pairs))

    before = both.sglang.stats()
    found = run(both.sglang, map(asked, range(8)))
    for number in range(8):
        said = tokens(found[f"g{number}"])
        assert said == tokens(both.alone(asked(number)))
        if number % 3 and said[-1] in eos:
            assert set(json.loads(spelled.text(said[:-1]))) <= {"a", 7}
    assert both.sglang.stats().retractions > before.retractions


def test_a_picture_is_found_again_and_another_is_not(both: Both) -> None:
    asked = [
        request(name, picture(both.config, seed, question), speaks=True, max_tokens=6)
        for name, seed, question in (("a", 1, 20), ("b", 1, 21), ("c", 2, 20), ("d", 1, 20))
    ]
    outputs = [run(both.sglang, [one])[one.request_id] for one in asked]
    shared = (3 + PICTURE_ROWS) // PAGE_SIZE * PAGE_SIZE
    assert [out[0].cached_tokens for out in outputs] == [0, shared, 0, shared]
    for one, out in zip(asked, outputs, strict=True):
        alone = both.alone(one)
        assert tokens(out) == tokens(alone)
        for name, rows in alone[0].data.items():
            torch.testing.assert_close(out[0].data[name], rows, atol=1e-4, rtol=1e-4)


def test_replies_end_as_on_torch(both: Both) -> None:
    said = tokens(both.alone(request("r", text(3, 20))))
    stop = both.torch.text(said[3:5])
    for name, sampling in {
        "string": {"stop": (stop,), "ignore_eos": False},
        "token": {"stop_token_ids": (said[4],)},
        "not yet": {"stop_token_ids": (said[4],), "min_tokens": 9},
        "short": {"max_tokens": 1},
    }.items():
        asked = request(name, text(3, 20), **sampling)
        found, alone = run(both.sglang, [asked])[name], both.alone(asked)
        assert (tokens(found), released(found)) == (tokens(alone), released(alone)), name
        assert found[-1].finish_reason == alone[-1].finish_reason, name


def test_logprobs_are_the_models_own(both: Both) -> None:
    asked = request("r", text(4, 20), logprobs=3, **SAMPLED, seed=1)
    for found, alone in zip(run(both.sglang, [asked])["r"], both.alone(asked), strict=True):
        assert found.logprobs is not None
        assert alone.logprobs is not None
        assert found.logprobs.logprob == pytest.approx(alone.logprobs.logprob, abs=1e-4)
        assert [t for t, _ in found.logprobs.top] == [t for t, _ in alone.logprobs.top]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
def test_leaving_frees_everything_at_once(both: Both, steps: int) -> None:
    stays = request("stays", text(50 + steps, 20))
    leaves = request("leaves", text(70 + steps, 3 * CHUNK))
    outputs: dict[str, list[StepOutput]] = defaultdict(list)
    with both.sglang.session():
        both.sglang.add(stays)
        both.sglang.add(leaves)
        for _ in range(steps):
            for output in both.sglang.step():
                outputs[output.request_id].append(output)
        both.sglang.abort("leaves")
        both.sglang.abort("leaves")
        assert both.sglang.stats().kv_pages_used <= 4
        again = request("leaves", text(90 + steps, 20))
        for name, out in run(both.sglang, [again]).items():
            outputs["again" if name == "leaves" else name] += out
    assert tokens(outputs["stays"]) == tokens(both.alone(stays))
    assert tokens(outputs["again"]) == tokens(both.alone(again))
    assert both.sglang.stats().kv_pages_used == 0


def test_many_requests_leave_nothing(both: Both) -> None:
    """Some reach their end, some are aborted while they wait, prefill, decode or are retracted."""
    from omni_core.engine.sglang_engine.upstream import Req

    kept = (EngineRequest, ActiveSequence, Sequence, Req)

    def serve(count: int, name: str) -> None:
        for number in range(count):
            both.sglang.add(request(f"{name}{number}", text(number, 40), max_tokens=5))
            both.sglang.step()
            if number % 3:
                both.sglang.abort(f"{name}{number - number % 8}")
        run(both.sglang, [])

    def alive() -> tuple[int, int]:
        gc.collect()
        objects = gc.get_objects()
        return sum(issubclass(type(thing), kept) for thing in objects), len(objects)

    with both.sglang.session():
        serve(10, "first")
        requests_before, objects_before = alive()
        serve(40, "then")
        requests_after, objects_after = alive()
    assert requests_after - requests_before < 8, "upstream keeps its last batch"
    assert objects_after - objects_before < 40
    stats = both.sglang.stats()
    assert (stats.waiting, stats.running, stats.kv_pages_used) == (0, 0, 0)


def test_what_can_never_run_is_refused_before_it_costs_anything(both: Both) -> None:
    for error, asked in (
        (ContextLengthError, request("r", text(1, PAGES * PAGE_SIZE))),
        (ContextLengthError, request("r", text(1, 20), max_tokens=PAGES * PAGE_SIZE)),
        (RequestError, request("r", text(1, 20), logit_bias={10**6: 1.0})),
        (RequestError, request("r", text(1, 20), max_tokens=0)),
    ):
        with pytest.raises(error):
            both.sglang.add(asked)
    assert not both.sglang.runnable()


def test_an_id_is_used_once_at_a_time(both: Both) -> None:
    both.sglang.add(request("r", text(1, 20)))
    with pytest.raises(ValueError, match="still in the engine"):
        both.sglang.add(request("r", text(1, 20)))
    both.sglang.abort("r")
    assert not both.sglang.runnable()


def test_new_weights_are_what_replies_are_made_of(
    both: Both, tiny_checkpoint: str, tmp_path: Path, ranks: int
) -> None:
    if ranks > 1:
        assert both.weights == []
        return
    [weights] = both.weights
    other = str(tmp_path / "other")
    tiny.build(other, seed=1)
    prepared = text(5, 40)
    old = tokens(run(both.sglang, [request("old", prepared)])["old"])
    weights.check(other)
    weights.load(other)
    try:
        runner = thinker.load_runner(context(other, "torch"))
        expected = run(TorchEngine(runner), [request("new", prepared)])["new"]
        outputs = run(both.sglang, [request("new", prepared)])["new"]
        assert tokens(outputs) == tokens(expected) != old
        assert outputs[0].cached_tokens == 0
        assert run(both.sglang, [request("again", prepared)])["again"][0].cached_tokens > 0
    finally:
        weights.load(tiny_checkpoint)
    assert tokens(run(both.sglang, [request("back", prepared)])["back"]) == old
