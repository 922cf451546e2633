"""The Thinker beside the authors': experts, states, logits and greedy tokens of every golden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from golden_files import arrays, assert_close

from omni_core.engine.base import EngineRequest
from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.specs import StageConfig, StageContext
from omni_core.types import RequestParams, SamplingParams
from omni_ming import thinker
from omni_ming.model.router import RoutedMoe
from omni_ming.payloads import Prepared
from omni_ming.prompt import row_keys
from omni_ming.thinker import ThinkerRunner

CASES = ("text", "image", "audio", "video", "mixed")
TOKENS = 12


@pytest.fixture(scope="module")
def runner(tiny_checkpoint: str) -> ThinkerRunner:
    return thinker.load_runner(
        StageContext(
            stage=StageConfig(name="thinker", factory=thinker.build),
            model_path=tiny_checkpoint,
            device="cpu",
            dtype="float32",
            ar_engine="torch",
            report=lambda message: None,
        )
    )


def golden(case: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{case}."): value
        for name, value in arrays("thinker").items()
        if name.startswith(f"{case}.")
    }


def prepared(case: str, runner: ThinkerRunner) -> Prepared:
    """The prompt of a golden, with the rows that the authors' encoders made."""
    given, config = golden(case), runner.config
    ids = given["input_ids"][0]
    made = Prepared(
        input_ids=ids,
        positions=given["position_ids"][:, 0],
        rope_delta=int(given["rope_delta"][0, 0]),
    )
    media = (config.image_token_id, config.video_token_id, config.audio_token_id)
    rows = np.flatnonzero(np.isin(ids, media))
    if len(rows):
        made["media_index"] = rows
        made["media_embeds"] = torch.from_numpy(given["inputs_embeds"][0][rows])
        made["media_row_keys"] = -1 - np.arange(len(rows)) - 10_000 * CASES.index(case)
    return made


def request(case: str, runner: ThinkerRunner, name: str = "") -> EngineRequest:
    given = prepared(case, runner)
    return EngineRequest(
        request_id=name or case,
        prompt_len=len(given["input_ids"]),
        inputs=given,
        params=RequestParams(),
        sampling=SamplingParams(temperature=0.0, max_tokens=TOKENS),
        prompt_token_ids=tuple(given["input_ids"].tolist()),
        row_keys=row_keys(given),
    )


def generate(engine: TorchEngine, requests: list[EngineRequest]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {one.request_id: [] for one in requests}
    for one in requests:
        engine.add(one)
    with engine.session():
        while engine.runnable():
            for output in engine.step():
                tokens[output.request_id].append(output.token)
    return tokens


def expected_tokens(case: str, runner: ThinkerRunner) -> list[int]:
    """As far as the reply goes: the authors' loop ran on behind an end token."""
    tokens: list[int] = golden(case)["greedy_tokens"].tolist()
    ends = [i for i, token in enumerate(tokens) if token in runner.eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("case", CASES)
def test_states_experts_and_logits(case: str, runner: ThinkerRunner, monkeypatch: Any) -> None:
    given, chosen, states = golden(case), [], []
    route = type(runner._decoder.layers[-1].mlp.router).__call__  # type: ignore[union-attr]

    def spy(self: Any, x: torch.Tensor, kinds: Any) -> Any:
        routed = route(self, x, kinds)
        chosen.append(routed[0])
        return routed

    call = type(runner._decoder).__call__

    def tapped(self: Any, x: Any, positions: Any, attend: Any, kinds: Any = None) -> Any:
        return call(self, x, positions, attend, kinds, lambda layer, rows: states.append(rows))

    monkeypatch.setattr(type(runner._decoder.layers[-1].mlp.router), "__call__", spy)  # type: ignore[union-attr]
    monkeypatch.setattr(type(runner._decoder), "__call__", tapped)
    engine = TorchEngine(runner, TorchEngineConfig(prefix_cache=False))
    engine.add(request(case, runner))
    with engine.session():
        engine.step()
    sparse = [i for i, x in enumerate(runner._decoder.layers) if isinstance(x.mlp, RoutedMoe)]
    for layer, made in zip(sparse, chosen, strict=True):
        assert np.array_equal(
            made.sort(dim=1).values.numpy(), np.sort(given[f"topk_idx_layer{layer}"][0], axis=1)
        )
    for layer in range(len(states) - 1):
        assert_close(states[layer], given[f"hidden_after_layer{layer}"][0])
    final = runner._decoder.norm(states[-1])
    assert_close(final, given["hidden_final"][0])
    assert_close(runner.logits(final[-4:]), given["logits_last4"][0])


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_alone(case: str, runner: ThinkerRunner) -> None:
    engine = TorchEngine(runner, TorchEngineConfig())
    assert generate(engine, [request(case, runner)])[case] == expected_tokens(case, runner)


@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_greedy_tokens_together(chunk: int, runner: ThinkerRunner) -> None:
    """In one batch, prompts in chunks, the second time with prompts from the prefix cache."""
    engine = TorchEngine(runner, TorchEngineConfig(prefill_chunk=chunk))
    for turn in range(2):
        made = generate(engine, [request(case, runner) for case in CASES])
        assert made == {case: expected_tokens(case, runner) for case in CASES}, turn
    assert engine.stats().prefix_hit_tokens > 0


def test_greedy_tokens_through_retractions(runner: ThinkerRunner) -> None:
    kv = runner.kv
    row_bytes = 2 * kv.layers * kv.kv_heads * kv.head_dim * 4
    engine = TorchEngine(runner, TorchEngineConfig(kv_budget_bytes=420 * row_bytes))
    asked = [request(case, runner, f"{case} {n}") for n in range(3) for case in CASES]
    made = generate(engine, asked)
    for name, tokens in made.items():
        assert tokens == expected_tokens(name.split()[0], runner), name
    assert engine.stats().retractions > 0
