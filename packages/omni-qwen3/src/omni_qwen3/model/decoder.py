"""A decoder stack over flat ragged batches.

Knows layers, residuals and positions. Knows nothing of embeddings, sequences, caches or heads: rows
come in, rows go out, and attention is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from omni_core.checkpoint.weights import Weights
from omni_core.engine.base import Attend
from omni_core.layers.mlp import DenseMlp
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_qwen3.config import DecoderConfig
from omni_qwen3.model.layers import Attention, Rope
from omni_qwen3.model.moe import SparseMoe

LayerTap: TypeAlias = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, its output (N, hidden)) -> the input of the next layer."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Pre-norm attention and feed-forward block."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: DenseMlp | SparseMoe

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: DecoderConfig, layer: int) -> DecoderLayer:
        """From everything under `prefix`."""
        mlp: DenseMlp | SparseMoe
        if config.moe is not None and config.is_sparse(layer):
            mlp = SparseMoe.load(weights, f"{prefix}mlp.", config.moe, config.hidden_size)
        else:
            mlp = DenseMlp.load(
                weights, f"{prefix}mlp.", config.hidden_size, config.intermediate_size
            )
        before, after = (
            RMSNorm.load(
                weights, f"{prefix}{name}_layernorm.weight", config.hidden_size, config.norm_eps
            )
            for name in ("input", "post_attention")
        )
        return cls(before, Attention.load(weights, f"{prefix}self_attn.", config), after, mlp)

    def __call__(
        self,
        x: torch.Tensor,
        tables: RotaryTables,
        layer: int,
        attend: Attend,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); appends to the cache of `layer`."""
        x = x + self.attention(self.attention_norm(x), tables, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


@dataclass(frozen=True, slots=True)
class Decoder:
    """All layers of one stack and its final norm."""

    rope: Rope
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: DecoderConfig) -> Decoder:
        """From everything under `prefix`."""
        layers = [
            weights.part(
                partial(
                    DecoderLayer.load,
                    prefix=f"{prefix}layers.{layer}.",
                    config=config,
                    layer=layer,
                )
            )
            for layer in range(config.layers)
        ]
        return cls(
            rope=Rope.of(config.rope, config.head_dim, weights.device),
            layers=tuple(layers),
            norm=weights.part(
                partial(
                    RMSNorm.load,
                    name=f"{prefix}norm.weight",
                    size=config.hidden_size,
                    eps=config.norm_eps,
                )
            ),
        )

    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        tap: LayerTap | None = None,
    ) -> torch.Tensor:
        """Rows (N, hidden) at M-RoPE positions (3, N), or (N,) where all axes agree, to the last
        layer's output, before `norm`."""
        tables = self.rope.tables(positions, x.dtype)
        for layer, block in enumerate(self.layers):
            x = block(x, tables, layer, attend)
            if tap is not None:
                x = tap(layer, x)
        return x
