"""Building blocks of the decoder stacks: norms, rotary embedding, attention and dense blocks.

Knows flat batches of rows (N, hidden) and single layers. Knows nothing of sequences, caches or
weights on disk beyond the names within one layer. Weights are plain tensors, not modules: a decode
step of a small model is bound by the cost of each call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.engine.base import Attend
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_qwen3.config import DecoderConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding for rows with one position, or with one per axis (time, height, width).

    Interleaved M-RoPE: of the head_dim / 2 frequencies, height owns 1, 4, 7, ... below
    3 * section[1], width owns 2, 5, 8, ... below 3 * section[2], and time owns the rest.
    """

    signed_frequency: torch.Tensor
    """Float32 (head_dim,): minus the frequencies for the first half, the same for the second."""
    axis: torch.Tensor
    """Int64 (head_dim,): the axis that owns each frequency."""

    @classmethod
    def of(cls, config: RopeConfig, head_dim: int, device: torch.device) -> Rope:
        """For heads of one width."""
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequency = 1.0 / config.theta**exponent
        axis = torch.zeros(head_dim // 2, dtype=torch.long)
        if config.mrope_section is not None:
            for index in (1, 2):
                axis[index : 3 * config.mrope_section[index] : 3] = index
        signed = torch.cat([-frequency, frequency])
        return cls(signed.to(device), torch.cat([axis, axis]).to(device))

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryTables:
        """Tables for positions (3, N), or (N,) where all axes agree."""
        line = positions[:, None] if positions.ndim == 1 else positions.t()[:, self.axis]
        angles = (line.float() * self.signed_frequency)[:, None]
        return RotaryTables(angles.cos().to(dtype), angles.sin().to(dtype))


@dataclass(frozen=True, slots=True)
class Qkv:
    """Query, key and value projection of a layer with per-head norms, in one product."""

    weight: torch.Tensor
    """((heads + 2 * kv_heads) * head_dim, hidden)."""
    norm: RMSNorm
    """(heads + kv_heads, head_dim): the query norm for each head, then the key norm."""
    heads: int
    kv_heads: int

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: DecoderConfig) -> Qkv:
        """From `prefix`{q,k,v}_proj and `prefix`{q,k}_norm."""
        width = config.head_dim
        q_norm, k_norm = (
            weights.tensor(f"{prefix}{part}_norm.weight", (width,)) for part in ("q", "k")
        )
        return cls(
            weight=weights.fused(
                [f"{prefix}{part}_proj.weight" for part in ("q", "k", "v")],
                rows=[config.heads * width, config.kv_heads * width, config.kv_heads * width],
                columns=config.hidden_size,
            ),
            norm=RMSNorm.of(
                torch.cat([q_norm.expand(config.heads, -1), k_norm.expand(config.kv_heads, -1)]),
                config.norm_eps,
            ),
            heads=config.heads,
            kv_heads=config.kv_heads,
        )

    def __call__(
        self, x: torch.Tensor, tables: RotaryTables
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows (..., hidden) to rotated q (..., heads, head_dim), k and v (..., kv_heads, ...)."""
        turning = self.heads + self.kv_heads
        rows = F.linear(x, self.weight).view(*x.shape[:-1], turning + self.kv_heads, -1)
        unturned, values = rows.split_with_sizes([turning, self.kv_heads], dim=-2)
        turned = tables(self.norm(unturned))
        queries, keys = turned.split_with_sizes([self.heads, self.kv_heads], dim=-2)
        return queries, keys, values


def load_output(weights: Weights, prefix: str, config: DecoderConfig) -> torch.Tensor:
    """Output projection of attention, (hidden, heads * head_dim), from `prefix`o_proj."""
    shape = (config.hidden_size, config.heads * config.head_dim)
    return weights.tensor(f"{prefix}o_proj.weight", shape)


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query self-attention over the engine's cache."""

    qkv: Qkv
    output: torch.Tensor

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: DecoderConfig) -> Attention:
        """From `prefix`{q,k,v,o}_proj and `prefix`{q,k}_norm."""
        return cls(Qkv.load(weights, prefix, config), load_output(weights, prefix, config))

    def __call__(
        self,
        x: torch.Tensor,
        tables: RotaryTables,
        layer: int,
        attend: Attend,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); appends to the cache of `layer`."""
        queries, keys, values = self.qkv(x, tables)
        return F.linear(attend(layer, queries, keys, values).flatten(1), self.output)


@dataclass(frozen=True, slots=True)
class ResizeMlp:
    """Two biased layers with silu between: Thinker space to Talker space."""

    weight_in: torch.Tensor
    bias_in: torch.Tensor
    weight_out: torch.Tensor
    bias_out: torch.Tensor

    @classmethod
    def load(
        cls, weights: Weights, prefix: str, inputs: int, inner: int, outputs: int
    ) -> ResizeMlp:
        """From `prefix`linear_fc1 and `prefix`linear_fc2."""
        return cls(
            weights.tensor(f"{prefix}linear_fc1.weight", (inner, inputs)),
            weights.tensor(f"{prefix}linear_fc1.bias", (inner,)),
            weights.tensor(f"{prefix}linear_fc2.weight", (outputs, inner)),
            weights.tensor(f"{prefix}linear_fc2.bias", (outputs,)),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (..., H) to (..., Talker hidden)."""
        inner = F.silu(F.linear(x, self.weight_in, self.bias_in))
        return F.linear(inner, self.weight_out, self.bias_out)
