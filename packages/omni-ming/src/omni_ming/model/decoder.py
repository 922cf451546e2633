"""The Thinker's decoder stack over flat ragged batches.

Knows layers, residuals, positions and kinds of rows. Knows nothing of embeddings, sequences, caches
or heads: rows come in, rows go out, and attention is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.engine.base import Attend
from omni_core.layers.mlp import DenseMlp
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_ming.model.config import ThinkerConfig
from omni_ming.model.rope import PartialRope, head_order, reordered
from omni_ming.model.router import RoutedMoe

PREFIX = "model.model."
LayerTap: TypeAlias = Callable[[int, torch.Tensor], None]
"""(layer, its output (N, hidden))."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention with normed, partly turned queries and keys."""

    qkv: torch.Tensor
    """((heads + 2 * kv_heads) * head_dim, hidden)."""
    norm: RMSNorm
    """(heads + kv_heads, head_dim): the query norm for each head, then the key norm."""
    output: torch.Tensor
    """(hidden, heads * head_dim)."""
    heads: int
    kv_heads: int

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: ThinkerConfig) -> Attention:
        """From `prefix`{query_key_value,dense,q_norm,k_norm}, queries and keys by `head_order`."""
        heads, kv_heads, width = config.heads, config.kv_heads, config.head_dim
        order = head_order(config, weights.device)
        q_norm, k_norm = (
            weights.tensor(f"{prefix}{part}_norm.weight", (width,))[order] for part in ("q", "k")
        )
        shape = ((heads + 2 * kv_heads) * width, config.hidden_size)
        qkv = reordered(weights.tensor(f"{prefix}query_key_value.weight", shape), config)
        norms = torch.cat([q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)])
        output = weights.tensor(f"{prefix}dense.weight", (config.hidden_size, heads * width))
        return cls(qkv, RMSNorm.of(norms, config.norm_eps), output, heads, kv_heads)

    def __call__(
        self, x: torch.Tensor, tables: RotaryTables, layer: int, attend: Attend
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); appends to the cache of `layer`."""
        turning = self.heads + self.kv_heads
        rows = F.linear(x, self.qkv).view(x.shape[0], turning + self.kv_heads, -1)
        unturned, values = rows.split_with_sizes([turning, self.kv_heads], dim=1)
        queries, keys = tables(self.norm(unturned)).split_with_sizes(
            [self.heads, self.kv_heads], dim=1
        )
        return F.linear(attend(layer, queries, keys, values).flatten(1), self.output)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Pre-norm attention and feed-forward block."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: DenseMlp | RoutedMoe

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: ThinkerConfig, layer: int) -> DecoderLayer:
        """From everything under `prefix`."""
        hidden = config.hidden_size
        mlp: DenseMlp | RoutedMoe
        if layer < config.dense_layers:
            mlp = DenseMlp.load(weights, f"{prefix}mlp.", hidden, config.intermediate_size)
        else:
            mlp = RoutedMoe.load(weights, f"{prefix}mlp.", config.moe, hidden)
        before, after = (
            RMSNorm.load(weights, f"{prefix}{name}_layernorm.weight", hidden, config.norm_eps)
            for name in ("input", "post_attention")
        )
        return cls(before, Attention.load(weights, f"{prefix}attention.", config), after, mlp)

    def __call__(
        self,
        x: torch.Tensor,
        tables: RotaryTables,
        layer: int,
        attend: Attend,
        kinds: torch.Tensor | None,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); appends to the cache of `layer`."""
        x = x + self.attention(self.attention_norm(x), tables, layer, attend)
        rows = self.mlp_norm(x)
        return x + (self.mlp(rows, kinds) if isinstance(self.mlp, RoutedMoe) else self.mlp(rows))


@dataclass(frozen=True, slots=True)
class Decoder:
    """All layers of the stack and its final norm."""

    rope: PartialRope
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm

    @classmethod
    def load(cls, weights: Weights, config: ThinkerConfig) -> Decoder:
        """From everything under `PREFIX` but the embeddings."""
        layers = [
            weights.part(
                partial(
                    DecoderLayer.load,
                    prefix=f"{PREFIX}layers.{layer}.",
                    config=config,
                    layer=layer,
                )
            )
            for layer in range(config.layers)
        ]
        norm = partial(
            RMSNorm.load, name=f"{PREFIX}norm.weight", size=config.hidden_size, eps=config.norm_eps
        )
        return cls(PartialRope.of(config, weights.device), tuple(layers), weights.part(norm))

    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        kinds: torch.Tensor | None = None,
        tap: LayerTap | None = None,
    ) -> torch.Tensor:
        """Rows (N, hidden) at positions (3, N), or (N,) where all axes agree, to the last layer's
        output, before `norm`. `kinds` (N,) of rows, see `router`; None where all is text."""
        tables = self.rope.tables(positions, x.dtype)
        for layer, block in enumerate(self.layers):
            x = block(x, tables, layer, attend, kinds)
            if tap is not None:
                tap(layer, x)
        return x
