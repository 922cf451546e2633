"""Ming's Thinker on SGLang: the authors' replies in every golden, whatever the engine does to a
request meanwhile, and otherwise those of the torch engine. One engine for the whole file: upstream
can be set up once in a process. With `--ranks N` it is split over N, which on a CPU talk by gloo.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thinker_cases import CASES, TOKENS, context, expected_tokens, golden, prepared, request

from omni_core.checkpoint.weights import Checkpoint
from omni_core.engine import build_sglang_engine
from omni_core.engine.base import Engine, EngineRequest, StepOutput
from omni_core.engine.torch_engine import TorchEngine
from omni_core.errors import ConfigError
from omni_core.specs import WeightLoader
from omni_core.types import SamplingParams
from omni_ming import thinker, tiny
from omni_ming.model.config import ThinkerConfig, load_thinker_config

pytestmark = pytest.mark.sglang

PAGE_SIZE = 16
PAGES = 26
"""Fewer than the goldens want together."""
CHUNK = 32


@dataclass(frozen=True)
class Both:
    """The engine under test, and the model on torch to compare with."""

    sglang: Engine
    torch: thinker.ThinkerRunner
    config: ThinkerConfig
    weights: list[WeightLoader]
    """What loads others; of a split model nothing does."""

    def alone(self, asked: EngineRequest) -> list[StepOutput]:
        """What the torch engine makes of a request by itself."""
        return run(TorchEngine(self.torch), [asked])[asked.request_id]


@pytest.fixture(scope="module")
def both(tiny_checkpoint: str, ranks: int) -> Both:
    config = load_thinker_config(tiny_checkpoint)
    if config.heads % ranks:
        pytest.skip(f"the tiny model has {config.heads} heads")
    page_bytes = 2 * config.layers * config.kv_heads * config.head_dim * 4 * PAGE_SIZE
    ctx = context(
        tiny_checkpoint,
        "sglang",
        kv_budget_bytes=str(PAGES * page_bytes),
        prefill_chunk=str(CHUNK),
        lookahead="on",
        max_running="6",
    )
    weights: list[WeightLoader] = []
    ctx = replace(
        ctx,
        stage=replace(ctx.stage, tp_size=ranks),
        other_devices=("cpu",) * (ranks - 1),
        loads=weights.append,
    )
    engine = build_sglang_engine(ctx, thinker.load_sglang_model(ctx))
    return Both(engine, thinker.load_runner(context(tiny_checkpoint)), config, weights)


def run(engine: Engine, requests: Iterable[EngineRequest]) -> dict[str, list[StepOutput]]:
    for one in requests:
        engine.add(one)
    outputs: dict[str, list[StepOutput]] = defaultdict(list)
    with engine.session():
        while engine.runnable():
            for output in engine.step():
                outputs[output.request_id].append(output)
    return outputs


def tokens(outputs: list[StepOutput]) -> list[int]:
    return [output.token for output in outputs]


def sampled(asked: EngineRequest, **sampling: Any) -> EngineRequest:
    return replace(asked, sampling=SamplingParams(**sampling).over(asked.sampling))


@pytest.mark.parametrize("case", CASES)
def test_a_golden_alone_then_from_the_cache(both: Both, case: str) -> None:
    """The second time all whole pages but the last row's are found; media rows among them."""
    rows = len(prepared(case, both.config)["input_ids"])
    for turn in range(2):
        made = run(both.sglang, [request(case, both.config, f"{case} {turn}")])[f"{case} {turn}"]
        assert tokens(made) == expected_tokens(case, both.config)
        if turn:
            assert made[0].cached_tokens == (rows - 1) // PAGE_SIZE * PAGE_SIZE
    stats = both.sglang.stats()
    assert (stats.waiting, stats.running, stats.kv_pages_used) == (0, 0, 0)


def test_logits_are_the_authors(both: Both) -> None:
    """By the log-probabilities of the likeliest tokens, of prompt and decode steps."""
    for case in CASES:
        asked = replace(
            request(case, both.config, ignore_eos=True), row_keys=None
        )  # computed, not found
        made = run(both.sglang, [sampled(asked, logprobs=4)])[case]
        given = golden(case)
        logits = np.concatenate([given["logits_last4"][0, -1:], given["decode_logits"]])
        expected = torch.from_numpy(logits).log_softmax(-1)
        assert tokens(made) == given["greedy_tokens"].tolist()
        for output, row in zip(made, expected, strict=True):
            assert output.logprobs is not None
            for token, logprob in output.logprobs.top:
                assert logprob == pytest.approx(float(row[token]), abs=2e-5)


def test_more_than_memory_holds_at_once(both: Both) -> None:
    """Retraction, chunks, look-ahead, kinds of rows of several prompts in one batch."""
    before = both.sglang.stats()
    asked = [
        sampled(request(case, both.config, f"{case} {n}", ignore_eos=True), max_tokens=40)
        for n in range(2)
        for case in CASES
    ]
    found = run(both.sglang, asked)
    for one in asked:
        made = tokens(found[one.request_id])
        case = one.request_id.split()[0]
        assert made[:TOKENS] == golden(case)["greedy_tokens"].tolist()
        assert made == tokens(both.alone(one))
    after = both.sglang.stats()
    assert after.retractions > before.retractions
    assert after.cut_prompts > before.cut_prompts
    assert after.lookahead_steps > before.lookahead_steps
    assert (after.waiting, after.running, after.kv_pages_used) == (0, 0, 0)


def test_a_placeholder_that_is_written_is_text(both: Both) -> None:
    """In decode steps and in what is computed again after a retraction."""
    config = both.config
    written = dict.fromkeys((config.image_token_id, config.audio_token_id), 100.0)
    asked = [
        sampled(
            request(case, config, f"{case} {n}", ignore_eos=True),
            logit_bias=written,
            temperature=1.0,
            seed=n,
            max_tokens=40,
            logprobs=2,
        )
        for n in range(3)
        for case in ("text", "mixed", "audio")
    ]
    before = both.sglang.stats().retractions
    found = run(both.sglang, asked)
    assert both.sglang.stats().retractions > before
    for one in asked:
        alone = both.alone(one)
        assert {*tokens(alone)} <= {*written}
        assert tokens(found[one.request_id]) == tokens(alone)
        for mine, theirs in zip(found[one.request_id], alone, strict=True):
            assert mine.logprobs is not None
            assert theirs.logprobs is not None
            assert mine.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-3)


def test_the_same_picture_read_otherwise_shares_the_text_before_it(both: Both) -> None:
    first, second = (request("image", both.config, name) for name in ("one", "other"))
    assert second.row_keys is not None
    second.row_keys[second.row_keys < 0] -= 5000
    run(both.sglang, [first])
    made = run(both.sglang, [second])["other"]
    rows = int(prepared("image", both.config)["media_index"][0])
    assert made[0].cached_tokens == rows // PAGE_SIZE * PAGE_SIZE
    assert tokens(made) == expected_tokens("image", both.config)


def test_new_weights_are_what_replies_are_made_of(
    both: Both, tiny_checkpoint: str, tmp_path: Path, ranks: int
) -> None:
    if ranks > 1:
        assert both.weights == []
        return
    [weights] = both.weights
    other = str(tmp_path / "other")
    tiny.build(other, seed=1)
    weights.check(other)
    weights.load(other)
    try:
        runner = thinker.load_runner(context(other))
        for case in CASES:
            asked = sampled(request(case, both.config), logprobs=1)
            expected = run(TorchEngine(runner), [asked])[case]
            made = run(both.sglang, [asked])[case]
            assert tokens(made) == tokens(expected)
            for mine, theirs in zip(made, expected, strict=True):
                assert mine.logprobs is not None
                assert theirs.logprobs is not None
                assert mine.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)
    finally:
        weights.load(tiny_checkpoint)
    made = run(both.sglang, [request("mixed", both.config)])["mixed"]
    assert tokens(made) == expected_tokens("mixed", both.config)


def test_what_does_not_fit_is_refused_before_anything_is_loaded(tiny_checkpoint: str) -> None:
    from omni_ming.on_sglang.decoder import check_decoder

    config = load_thinker_config(tiny_checkpoint)
    with (
        Checkpoint(tiny_checkpoint) as checkpoint,
        pytest.raises(ConfigError, match=r"mlp\.gate\.weight' has the shape"),
    ):
        check_decoder(checkpoint, replace(config, moe=replace(config.moe, experts=8)))
    ctx = context(tiny_checkpoint, "sglang")
    with pytest.raises(ConfigError, match="tp_size is 3 but the model has 2 attention heads"):
        thinker.load_sglang_model(replace(ctx, stage=replace(ctx.stage, tp_size=3)))
