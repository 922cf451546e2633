"""A decoder of the checkpoint as upstream is given it: its config.json, and a check of its tensors.

Knows names and shapes. Knows nothing of upstream's classes, nor of what a decoder is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.checkpoint.weights import Checkpoint, open_weights
from omni_qwen3.config import DecoderConfig
from omni_qwen3.model.decoder import Decoder


def check_tensors(
    checkpoint: Checkpoint, config: DecoderConfig, layers: str, head: str, *, embeddings: str
) -> None:
    """ConfigError unless the checkpoint has all tensors of the decoder and its head, in the right
    shapes, and no others, under the prefixes `layers` and `head`. Upstream passes over what it does
    not know or find."""
    weights = open_weights(
        checkpoint, (layers, head), device="meta", dtype="float32", report=lambda _: None
    )
    Decoder.load(weights, layers, config)
    for name in (f"{layers}{embeddings}.weight", f"{head}weight"):
        weights.tensor(name, (config.vocab_size, config.hidden_size))
    weights.finish()


def as_qwen3_moe(text_config: Mapping[str, Any], decoder: DecoderConfig) -> dict[str, Any]:
    """config.json of the decoder alone: what may be silent in `text_config` has other defaults in a
    Qwen3-MoE's."""
    return {
        **text_config,
        "head_dim": decoder.head_dim,
        "norm_topk_prob": decoder.moe is not None and decoder.moe.norm_topk_prob,
        "model_type": "qwen3_moe",
    }
