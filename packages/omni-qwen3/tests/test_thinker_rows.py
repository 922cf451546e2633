"""The Thinker's forward over one prompt with pictures, row by row against transformers' decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import Qwen3OmniMoeForConditionalGeneration

from omni_core.checkpoint.weights import Checkpoint, open_weights
from omni_core.engine.base import Batch, EngineRequest, Segment, Sequence
from omni_core.types import RequestParams, SamplingParams
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.payloads import Prepared
from omni_qwen3.thinker import WEIGHTS, ThinkerRunner
from omni_qwen3.thinker_prompts import ThinkerInputs

PICTURES = 12
LEVELS = 3


class WholePromptAttention:
    """`AttentionBatch` over one sequence, its chunks in order."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if layer in self._kept:
            k, v = (torch.cat(pair) for pair in zip(self._kept[layer], (k, v), strict=True))
        self._kept[layer] = (k, v)
        rows, length = len(q), len(k)
        mask = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
        heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)


@pytest.fixture(scope="module")
def config(tiny_checkpoint: str) -> OmniConfig:
    return load_config(tiny_checkpoint)


@pytest.fixture(scope="module")
def prepared(config: OmniConfig) -> Prepared:
    start, end = config.im_start_token_id, config.im_end_token_id
    ids = [start, 5, 6, end, start, config.user_token_id, 7]
    first = len(ids)
    ids += [config.thinker.image_token_id] * PICTURES + [8, end]
    ids += [start, config.assistant_token_id, 9]
    generator = torch.Generator().manual_seed(0)
    rows = np.arange(first, first + PICTURES)
    hidden = config.thinker.decoder.hidden_size
    return Prepared(
        input_ids=np.array(ids),
        positions=np.random.default_rng(0).integers(0, 99, (3, len(ids))).astype(np.float32),
        rope_delta=0.0,
        media_index=rows,
        media_embeds=torch.randn(PICTURES, hidden, generator=generator),
        visual_index=rows,
        deepstack=torch.randn(LEVELS, PICTURES, hidden, generator=generator),
    )


def reference(path: str, prepared: Prepared, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """Logits of every row and all hidden states, as transformers computes them."""
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(path, dtype=dtype).thinker.eval()
    ids = torch.from_numpy(prepared["input_ids"])
    is_picture = torch.zeros(len(ids), dtype=torch.bool)
    is_picture[prepared["visual_index"]] = True
    rows = model.model.embed_tokens(ids)
    rows[is_picture] = prepared["media_embeds"].to(dtype)
    out = model.model(
        inputs_embeds=rows[None],
        position_ids=torch.from_numpy(prepared["positions"])[:, None],
        visual_pos_masks=is_picture[None],
        deepstack_visual_embeds=list(prepared["deepstack"].to(dtype)),
        output_hidden_states=True,
    )
    return model.lm_head(out.last_hidden_state[0]).float(), out.hidden_states


def forward(
    path: str, config: OmniConfig, prepared: Prepared, dtype: str, chunk: int
) -> tuple[torch.Tensor, Any]:
    """Logits of the last row of each chunk and the conditioning, `chunk` rows at a time."""
    with Checkpoint(path) as checkpoint:
        weights = open_weights(
            checkpoint, WEIGHTS, device="cpu", dtype=dtype, report=lambda message: None
        )
        runner = ThinkerRunner(
            weights, config, eos_token_ids=frozenset(), detokenize=lambda ids: ""
        )
    length = len(prepared["input_ids"])
    request = EngineRequest(
        request_id="r",
        prompt_len=length,
        inputs=ThinkerInputs(prepared, conditions=True),
        params=RequestParams(),
        sampling=SamplingParams(),
    )
    seq, attend = Sequence(request=request), WholePromptAttention()
    runner.open(seq)
    none = torch.zeros(0, dtype=torch.long)
    segments = [
        Segment(seq=seq, start=start, count=min(chunk, length - start), samples=True)
        for start in range(0, length, chunk)
    ]
    batches = [
        Batch(segments=[segment], decodes=0, rows=none, tokens=none, attend=attend)
        for segment in segments
    ]
    hidden = torch.cat([runner.forward(batch) for batch in batches])
    seq.tokens.append(1)
    (conditioning,) = runner.collect([seq], hidden[-1:], [False])
    return runner.logits(hidden), conditioning


@pytest.mark.parametrize("chunk", [100, 5])
@torch.inference_mode()
def test_every_layer_that_may_be_accepted_is_captured_as_transformers_does(
    tiny_checkpoint: str, config: OmniConfig, prepared: Prepared, chunk: int
) -> None:
    logits, states = reference(tiny_checkpoint, prepared, torch.float32)
    rows = prepared["media_index"]
    for layer in range(1, config.thinker.decoder.layers + 1):
        talker = replace(config.require_talker(), accept_hidden_layer=layer)
        accepted = replace(config, talker=talker)
        got, conditioning = forward(tiny_checkpoint, accepted, prepared, "float32", chunk)
        torch.testing.assert_close(got[-1], logits[-1], atol=2e-4, rtol=1e-4)
        is_media = conditioning["user_is_media"]
        assert int(is_media.sum()) == PICTURES
        captured = conditioning["user_rows"][is_media]
        torch.testing.assert_close(captured, states[layer][0, rows], atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_bfloat16_is_no_further_from_float32_than_transformers(
    tiny_checkpoint: str, config: OmniConfig, prepared: Prepared
) -> None:
    exact, _ = reference(tiny_checkpoint, prepared, torch.float32)
    theirs, _ = reference(tiny_checkpoint, prepared, torch.bfloat16)
    ours, _ = forward(tiny_checkpoint, config, prepared, "bfloat16", 1)
    assert ours.shape == exact.shape
    # The median: rounding that sends one row to another expert moves that row far, in either.
    our_error, their_error = ((x - exact).abs().mean(dim=1).median() for x in (ours, theirs))
    assert our_error <= 1.5 * their_error
