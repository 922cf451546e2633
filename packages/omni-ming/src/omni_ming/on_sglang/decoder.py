"""The decoder of a checkpoint as upstream is given it: its config.json, its tensors in our order,
and a check of them.

Knows names and shapes. Knows nothing of upstream's classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch

from omni_core.checkpoint.weights import Checkpoint, open_weights
from omni_ming.model.config import ThinkerConfig
from omni_ming.model.decoder import PREFIX, Decoder
from omni_ming.model.rope import head_order, reordered

HEAD: Final = "model.lm_head."
WEIGHTS: Final = (PREFIX, HEAD)
NORMS: Final = {
    "q_norm.weight": "query_layernorm.weight",
    "k_norm.weight": "key_layernorm.weight",
}
"""Of queries and keys: ends of names in the checkpoint, and of upstream's."""
OURS: Final = "thinker"
"""The field of upstream's config.json that is our own."""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """`SglangModel.weights`: upstream loads all there is."""

    config: ThinkerConfig

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        with Checkpoint(model_path) as checkpoint:
            check_decoder(checkpoint, self.config)

    def load(self, model_path: str) -> None:
        """Nothing is left to load."""


def check_decoder(checkpoint: Checkpoint, config: ThinkerConfig) -> None:
    """ConfigError unless the checkpoint has all tensors of the decoder and its head, in the right
    shapes, and no others. Upstream passes over what it does not know or find."""
    weights = open_weights(
        checkpoint, WEIGHTS, device="meta", dtype="float32", report=lambda _: None
    )
    Decoder.load(weights, config)
    for name in (f"{PREFIX}word_embeddings.weight", f"{HEAD}weight"):
        weights.tensor(name, (config.vocab_size, config.hidden_size))
    weights.finish()


def split_widths(config: ThinkerConfig) -> dict[str, int]:
    """What ranks divide among themselves, beside heads of keys and values."""
    return {
        "attention heads": config.heads,
        "columns in a layer without experts": config.intermediate_size,
        "columns in an expert": config.moe.intermediate_size,
        "columns in the shared expert": config.moe.shared_intermediate_size,
    }


def upstream_config(config: ThinkerConfig) -> dict[str, Any]:
    """config.json of the decoder alone, of the one kind with experts that both transformers and
    upstream can read; upstream's layers find the rest beside its fields."""
    moe = config.moe
    return {
        "model_type": "qwen3_moe",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "first_k_dense_replace": config.dense_layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "partial_rotary_factor": config.rotary_dim / config.head_dim,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_len,
        "hidden_act": "silu",
        "use_qk_norm": True,
        "use_bias": False,
        "use_qkv_bias": False,
        "embedding_dropout": 0.0,
        "tie_word_embeddings": False,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "num_shared_experts": 1,
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "moe_intermediate_size": moe.intermediate_size,
        "moe_shared_expert_intermediate_size": moe.shared_intermediate_size,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "router_type": "MultiRouter",
        "router_dtype": "fp32",
        "moe_router_enable_expert_bias": True,
        "routed_scaling_factor": 1.0,  # the shares that experts are given have it
        "eos_token_id": config.eos_token_id,
        OURS: msgspec.to_builtins(config),
    }


def ours(config: Any) -> ThinkerConfig:
    """Of what upstream has read of `upstream_config`."""
    return msgspec.convert(getattr(config, OURS), ThinkerConfig)


def renamed(
    weights: Iterable[tuple[str, torch.Tensor]], config: ThinkerConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    """The decoder's and the head's tensors, by upstream's names and with heads in our order."""
    order = head_order(config, torch.device("cpu"))
    for name, tensor in weights:
        if not name.startswith(WEIGHTS):
            continue
        name = name.removeprefix("model.")
        if name.endswith("query_key_value.weight"):
            yield name, reordered(tensor, config)
        elif (end := name.rpartition("attention.")[2]) in NORMS:
            yield name.removesuffix(end) + NORMS[end], tensor[order.to(tensor.device)]
        else:
            yield name, tensor
