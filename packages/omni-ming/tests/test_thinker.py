"""The Thinker beside the authors': experts, states, logits and greedy tokens of every golden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from golden_files import assert_close
from thinker_cases import CASES, context, expected_tokens, generate, golden, prepared, request

from omni_core.checkpoint.renew import PartsLoader
from omni_core.engine.base import Segment, Sequence
from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_ming import thinker, tiny
from omni_ming.model.router import AUDIO, IMAGE, TEXT, RoutedMoe
from omni_ming.prompt import Prompt, flatten, kinds_of
from omni_ming.thinker import ThinkerRunner


@pytest.fixture(scope="module")
def runner(tiny_checkpoint: str) -> ThinkerRunner:
    return thinker.load_runner(context(tiny_checkpoint))


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
    engine.add(request(case, runner.config))
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
    assert generate(engine, [request(case, runner.config)])[case] == expected_tokens(
        case, runner.config
    )


@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_greedy_tokens_together(chunk: int, runner: ThinkerRunner) -> None:
    """In one batch, prompts in chunks, the second time with prompts from the prefix cache."""
    engine = TorchEngine(runner, TorchEngineConfig(prefill_chunk=chunk))
    for turn in range(2):
        made = generate(engine, [request(case, runner.config) for case in CASES])
        assert made == {case: expected_tokens(case, runner.config) for case in CASES}, turn
    assert engine.stats().prefix_hit_tokens > 0


def test_greedy_tokens_through_retractions(runner: ThinkerRunner) -> None:
    kv = runner.kv
    row_bytes = 2 * kv.layers * kv.kv_heads * kv.head_dim * 4
    engine = TorchEngine(runner, TorchEngineConfig(kv_budget_bytes=420 * row_bytes))
    asked = [request(case, runner.config, f"{case} {n}") for n in range(3) for case in CASES]
    made = generate(engine, asked)
    for name, tokens in made.items():
        assert tokens == expected_tokens(name.split()[0], runner.config), name
    assert engine.stats().retractions > 0


@pytest.mark.parametrize("case", CASES)
def test_logits_of_decode_steps(
    case: str, runner: ThinkerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.Tensor] = []

    def kept(hidden: torch.Tensor) -> torch.Tensor:
        made.append(ThinkerRunner.logits(runner, hidden))
        return made[-1].clone()

    monkeypatch.setattr(runner, "logits", kept)
    engine = TorchEngine(runner, TorchEngineConfig())
    tokens = generate(engine, [request(case, runner.config, ignore_eos=True)])[case]
    assert tokens == golden(case)["greedy_tokens"].tolist()
    assert_close(torch.cat(made[1:]), golden(case)["decode_logits"])


def test_rows_are_routed_by_what_they_are_and_replies_as_text(runner: ThinkerRunner) -> None:
    """The authors' masks exist where embeddings come in; a placeholder that the model writes has
    none behind it, in a decode step as after a retraction."""
    config, given = runner.config, prepared("mixed", runner.config)
    seq = Sequence(request=request("mixed", runner.config))
    seq.state = Prompt(given, device=runner.device, dtype=runner.dtype)
    seq.tokens = [config.image_token_id, config.audio_token_id, 7]
    ids = given["input_ids"]
    whole = Segment(seq=seq, start=0, count=len(ids) + 2, samples=True)
    nothing = torch.zeros(0, dtype=torch.long)
    kinds = kinds_of(flatten([whole], nothing, runner.device), config)
    assert kinds is not None
    expected = np.full(len(ids), TEXT)
    expected[np.isin(ids, (config.image_token_id, config.video_token_id))] = IMAGE
    expected[ids == config.audio_token_id] = AUDIO
    assert {IMAGE, AUDIO} < {*expected.tolist()}
    assert kinds.tolist() == [*expected.tolist(), TEXT, TEXT]
    rows = given["media_index"]
    before = Segment(seq=seq, start=0, count=int(rows[0]), samples=False)
    assert kinds_of(flatten([before], nothing, runner.device), config) is None
    step = Segment(seq=seq, start=len(ids), count=1, samples=True)
    written = torch.tensor([config.image_token_id])
    assert kinds_of(flatten([step], written, runner.device), config) is None


def test_the_same_rows_by_another_router_are_not_found(runner: ThinkerRunner) -> None:
    """Media with equal ids and positions but other keys share the text before them alone."""
    first, second = (request("audio", runner.config, name) for name in ("one", "other"))
    assert second.row_keys is not None
    second.row_keys[second.row_keys < 0] -= 5000
    engine = TorchEngine(runner, TorchEngineConfig())
    rows = int(prepared("audio", runner.config)["media_index"][0])
    for asked, most in ((first, 0), (second, rows)):
        before = engine.stats().prefix_hit_tokens
        assert generate(engine, [asked])[asked.request_id] == expected_tokens(
            "audio", runner.config
        )
        found = engine.stats().prefix_hit_tokens - before
        assert found == most // 16 * 16


def test_new_weights_are_those_of_a_stage_built_of_them(
    tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = str(tmp_path_factory.mktemp("other") / "tiny")
    tiny.build(other, seed=1)
    kept: list[Any] = []
    ctx = context(tiny_checkpoint, kv_budget_bytes=str(2**22))
    thinker.build(replace(ctx, loads=kept.append))
    [loader] = kept
    assert isinstance(loader, PartsLoader)

    def numbers(of: ThinkerRunner) -> dict[str, list[int]]:
        asked = [request(case, of.config) for case in CASES]
        return generate(TorchEngine(of, TorchEngineConfig()), asked)

    running, fresh = (thinker.load_runner(context(path)) for path in (tiny_checkpoint, other))
    loads = replace(loader, parts=running.parts, after=lambda: None)
    before = numbers(running)
    loads.check(other)
    assert numbers(running) == before
    loads.load(other)
    assert numbers(running) == numbers(fresh) != before
    loads.load(tiny_checkpoint)
    assert numbers(running) == before
