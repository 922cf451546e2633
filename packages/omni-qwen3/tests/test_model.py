"""Single modules against transformers' own, and against themselves in other batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as hf

from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.layers import experts
from omni_core.layers.experts import DenseExperts, GroupedExperts
from omni_core.layers.mlp import DenseMlp
from omni_qwen3.config import MoeConfig, OmniConfig, RopeConfig, load_config
from omni_qwen3.model.layers import Rope
from omni_qwen3.model.moe import SparseMoe
from omni_qwen3.model.predictor import SAMPLED_TOP_K, SAMPLED_TOP_P, CodePredictor, draw

PREDICTOR = "talker.code_predictor."
ROUTER = ("moe.gate.weight", "moe.shared_expert_gate.weight")


@pytest.fixture(scope="module")
def config(tiny_checkpoint: str) -> OmniConfig:
    return load_config(tiny_checkpoint)


@pytest.fixture(scope="module")
def hf_config(tiny_checkpoint: str) -> Any:
    return Qwen3OmniMoeConfig.from_pretrained(tiny_checkpoint)


def weights_of(checkpoint: Checkpoint, prefix: str) -> Weights:
    return open_weights(
        checkpoint, [prefix], device="cpu", dtype="float32", report=lambda message: None
    )


@pytest.fixture(scope="module")
def predictor(tiny_checkpoint: str, config: OmniConfig) -> CodePredictor:
    talker = config.require_talker()
    with Checkpoint(tiny_checkpoint) as checkpoint:
        return CodePredictor(
            weights_of(checkpoint, PREDICTOR), PREDICTOR, talker.predictor, talker.code_groups
        )


@pytest.fixture(scope="module")
def hf_predictor(tiny_checkpoint: str, hf_config: Any) -> Any:
    model = hf.Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration(
        hf_config.talker_config.code_predictor_config
    ).eval()
    with Checkpoint(tiny_checkpoint) as checkpoint:
        state = {
            n.removeprefix(PREDICTOR): checkpoint.tensor(n) for n in checkpoint.names(PREDICTOR)
        }
    model.load_state_dict(state)
    return model


def random_frames(batch: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(batch, hidden, generator=generator),
        torch.randint(64, (batch,), generator=generator),
        torch.randn(batch, hidden, generator=generator) * 0.5,
    )


def random_moe(shared: bool) -> tuple[SparseMoe, Any, torch.Tensor]:
    """Ours and transformers' block with the same random weights, and some rows."""
    torch.manual_seed(0)
    text = hf.Qwen3OmniMoeTalkerTextConfig if shared else hf.Qwen3OmniMoeTextConfig
    hf_config = text(
        hidden_size=32,
        moe_intermediate_size=16,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=not shared,
    )
    hf_config.shared_expert_intermediate_size = 24
    block = (
        hf.Qwen3OmniMoeTalkerTextSparseMoeBlock
        if shared
        else hf.Qwen3OmniMoeThinkerTextSparseMoeBlock
    )(hf_config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tensors = {f"moe.{name}": value for name, value in block.state_dict().items()}
    ours = SparseMoe.of(
        MoeConfig(
            experts=8,
            top_k=3,
            intermediate_size=16,
            norm_topk_prob=not shared,
            shared_intermediate_size=24 if shared else None,
        ),
        torch.cat([tensors[name] for name in ROUTER if name in tensors]),
        tensors["moe.experts.gate_up_proj"],
        tensors["moe.experts.down_proj"],
        _shared(tensors) if shared else None,
    )
    return ours, block, torch.randn(40, 32)


def _shared(tensors: dict[str, torch.Tensor]) -> DenseMlp:
    prefix = "moe.shared_expert."
    gate, up, down = (tensors[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return DenseMlp(torch.cat([gate, up]), down)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@torch.inference_mode()
def test_moe_equals_transformers(shared: bool, dense: bool, monkeypatch: Any) -> None:
    if not dense:
        monkeypatch.setattr(experts, "DENSE_LIMIT_BYTES", 0)
    ours, block, x = random_moe(shared)
    assert isinstance(ours.experts, DenseExperts if dense else GroupedExperts)
    for rows in (1, 2, 40):
        expected = block(x[None, :rows])[0]
        torch.testing.assert_close(ours(x[:rows]), expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_moe_rows_do_not_depend_on_their_neighbours() -> None:
    ours, _, x = random_moe(shared=True)
    alone = torch.cat([ours(row[None]) for row in x])
    torch.testing.assert_close(ours(x), alone, atol=1e-5, rtol=1e-5)


def test_rope_turns_by_the_axis_that_owns_each_frequency(hf_config: Any) -> None:
    text = hf_config.thinker_config.text_config
    theirs = hf.Qwen3OmniMoeThinkerTextRotaryEmbedding(text)
    section = text.rope_parameters["mrope_section"]
    rope = Rope.of(
        RopeConfig(theta=text.rope_parameters["rope_theta"], mrope_section=tuple(section)),
        text.head_dim,
        torch.device("cpu"),
    )
    positions = torch.tensor([[0.0, 7.0, 7.5], [0.0, 3.0, 90.0], [0.0, 5.0, 1.0]])
    queries = torch.randn(3, 4, text.head_dim)
    turned = rope.tables(positions, torch.float32)(queries)
    cos, sin = theirs(queries, positions[:, None])
    expected, _ = hf.apply_rotary_pos_emb(queries[None], queries[None], cos, sin, unsqueeze_dim=2)
    torch.testing.assert_close(turned, expected[0])


@torch.inference_mode()
def test_predictor_equals_transformers(predictor: CodePredictor, hf_predictor: Any) -> None:
    hidden, first, embedding = random_frames(8, 48)
    frames = predictor(hidden, first, embedding, None)
    expected = hf_predictor.generate(
        inputs_embeds=torch.stack([hidden, embedding], dim=1), max_new_tokens=15, do_sample=False
    )
    assert torch.equal(frames.codes[:, 0], first)
    assert torch.equal(frames.codes[:, 1:], expected)
    total = sum(
        table(frames.codes[:, group + 1])
        for group, table in enumerate(hf_predictor.model.codec_embedding)
    )
    torch.testing.assert_close(frames.embedding, total)


@pytest.mark.parametrize("sampled", [False, True])
@torch.inference_mode()
def test_predictor_gives_a_request_the_same_codes_alone_and_among_others(
    predictor: CodePredictor, sampled: bool
) -> None:
    hidden, first, embedding = random_frames(8, 48)
    uniforms = torch.rand(8, 15, generator=torch.Generator().manual_seed(1)) if sampled else None
    together = predictor(hidden, first, embedding, uniforms).codes
    for row in range(8):
        one = slice(row, row + 1)
        alone = predictor(
            hidden[one], first[one], embedding[one], None if uniforms is None else uniforms[one]
        )
        assert torch.equal(alone.codes[0], together[row])
    greedy = predictor(hidden, first, embedding, None).codes
    assert torch.equal(together, greedy) is not sampled


def test_draw_follows_the_filtered_distribution() -> None:
    logits = torch.tensor([0.5, 3.0, 2.0, 0.0, 1.0])
    grid = (torch.arange(2000) + 0.5) / 2000
    codes = draw(logits.expand(2000, -1), grid)
    probabilities = logits.softmax(dim=-1)
    kept = torch.tensor([0.0, probabilities[1], probabilities[2], 0.0, 0.0])
    assert kept.sum() > SAMPLED_TOP_P > probabilities[1]
    share = torch.bincount(codes, minlength=5) / 2000
    torch.testing.assert_close(share, kept / kept.sum(), atol=1e-3, rtol=0)


def test_draw_never_leaves_the_best_codes() -> None:
    flat = torch.zeros(1, 2 * SAMPLED_TOP_K)
    flat[0, :SAMPLED_TOP_K] = 0.01
    for value in (0.0, 0.5, 1 - 2**-24):
        assert int(draw(flat, torch.tensor([value]))) < SAMPLED_TOP_K


def test_draw_is_greedy_for_negative_uniforms_only() -> None:
    logits = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    uniforms = torch.full((64,), -1.0)
    uniforms[::2] = 0.99
    codes = draw(logits, uniforms)
    best = logits.argmax(dim=-1)
    assert torch.equal(codes[1::2], best[1::2])
    assert not torch.equal(codes[::2], best[::2])
