"""The Talker's language model, a Qwen2, over flat ragged batches.

Knows layers, residuals and positions. Knows nothing of sequences, caches or what its rows are:
attention is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.engine.base import Attend
from omni_core.layers.mlp import DenseMlp
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_ming.talker.config import LlmConfig

PREFIX = "model."


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention with biases on its inputs."""

    qkv: torch.Tensor
    """((heads + 2 * kv_heads) * head_dim, hidden)."""
    bias: torch.Tensor
    output: torch.Tensor
    """(hidden, heads * head_dim)."""
    heads: int
    kv_heads: int

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: LlmConfig) -> Attention:
        """From everything under `prefix`."""
        width = config.head_dim
        rows = {
            "q": config.heads * width,
            "k": config.kv_heads * width,
            "v": config.kv_heads * width,
        }
        return cls(
            qkv=weights.fused(
                [f"{prefix}{part}_proj.weight" for part in rows],
                rows=list(rows.values()),
                columns=config.hidden_size,
            ),
            bias=torch.cat(
                [weights.tensor(f"{prefix}{part}_proj.bias", (n,)) for part, n in rows.items()]
            ),
            output=weights.tensor(f"{prefix}o_proj.weight", (config.hidden_size, rows["q"])),
            heads=config.heads,
            kv_heads=config.kv_heads,
        )

    def __call__(
        self, x: torch.Tensor, tables: RotaryTables, layer: int, attend: Attend
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); appends to the cache of `layer`."""
        turning = self.heads + self.kv_heads
        rows = F.linear(x, self.qkv, self.bias).view(len(x), turning + self.kv_heads, -1)
        unturned, values = rows.split_with_sizes([turning, self.kv_heads], dim=1)
        queries, keys = tables(unturned).split_with_sizes([self.heads, self.kv_heads], dim=1)
        return F.linear(attend(layer, queries, keys, values).flatten(1), self.output)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Pre-norm attention and feed-forward block."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: DenseMlp

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: LlmConfig) -> DecoderLayer:
        """From everything under `prefix`."""
        hidden = config.hidden_size
        before, after = (
            RMSNorm.load(weights, f"{prefix}{name}_layernorm.weight", hidden, config.norm_eps)
            for name in ("input", "post_attention")
        )
        return cls(
            before,
            Attention.load(weights, f"{prefix}self_attn.", config),
            after,
            DenseMlp.load(weights, f"{prefix}mlp.", hidden, config.intermediate_size),
        )

    def __call__(
        self, x: torch.Tensor, tables: RotaryTables, layer: int, attend: Attend
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); appends to the cache of `layer`."""
        x = x + self.attention(self.attention_norm(x), tables, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


@dataclass(frozen=True, slots=True)
class Llm:
    """All layers of the stack and its final norm."""

    signed_frequency: torch.Tensor
    """Float32 (head_dim,): minus theta^(-2j / head_dim) in the first half, the same in the second
    with the other sign."""
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm

    @classmethod
    def load(cls, weights: Weights, config: LlmConfig) -> Llm:
        """The tensors under "model." but the embeddings."""
        layers = [
            weights.part(
                partial(DecoderLayer.load, prefix=f"{PREFIX}layers.{layer}.", config=config)
            )
            for layer in range(config.layers)
        ]
        norm = partial(
            RMSNorm.load, name=f"{PREFIX}norm.weight", size=config.hidden_size, eps=config.norm_eps
        )
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequency = (1.0 / config.rope_theta**exponent).to(weights.device)
        return cls(torch.cat([-frequency, frequency]), tuple(layers), weights.part(norm))

    def __call__(self, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Rows (N, hidden) at positions (N,) to the last layer's output, before `norm`."""
        angles = (positions[:, None].float() * self.signed_frequency)[:, None]
        tables = RotaryTables(angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        for layer, block in enumerate(self.layers):
            x = block(x, tables, layer, attend)
        return x
