"""The transformer of both halves of the AudioVAE: causal, perhaps within a sliding window.

Knows rows (B, n, hidden) and what earlier calls left of the same sequences. Knows nothing of sound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.layers.mlp import DenseMlp
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_ming.vae.config import BackboneConfig


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier frames left of a batch of sequences."""

    kv: torch.Tensor
    """(layers, B, P, 2 * kv_heads, head_dim): rotated keys, then values, of the last P frames; of
    a sequence that has had fewer, what comes first is not looked at."""
    seen: torch.Tensor
    """Int64 (B,): frames that each has had."""

    @classmethod
    def none(cls, config: BackboneConfig, batch: int, like: torch.Tensor) -> Past:
        """Of sequences that begin."""
        shape = (config.layers, batch, 0, 2 * config.kv_heads, config.head_dim)
        return cls(like.new_zeros(shape), torch.zeros(batch, dtype=torch.long, device=like.device))


@dataclass(frozen=True, slots=True)
class Layer:
    """Pre-norm attention and feed-forward block."""

    norm1: RMSNorm
    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    output: torch.Tensor
    norm2: RMSNorm
    mlp: DenseMlp

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: BackboneConfig) -> Layer:
        """From everything under `prefix`."""
        hidden, attention = config.hidden_size, f"{prefix}self_attn."
        widths = [n * config.head_dim for n in (config.heads, config.kv_heads, config.kv_heads)]
        parts = list(zip("qkv", widths, strict=True))
        return cls(
            norm1=RMSNorm.load(weights, f"{prefix}input_layernorm.weight", hidden, config.norm_eps),
            qkv=weights.fused(
                [f"{attention}{part}_proj.weight" for part, _ in parts], widths, hidden
            ),
            qkv_bias=torch.cat(
                [weights.tensor(f"{attention}{part}_proj.bias", (n,)) for part, n in parts]
            ),
            output=weights.tensor(f"{attention}o_proj.weight", (hidden, widths[0])),
            norm2=RMSNorm.load(
                weights, f"{prefix}post_attention_layernorm.weight", hidden, config.norm_eps
            ),
            mlp=DenseMlp.load(weights, f"{prefix}mlp.", hidden, config.intermediate_size),
        )

    def __call__(
        self,
        x: torch.Tensor,
        tables: RotaryTables,
        visible: torch.Tensor,
        past: torch.Tensor,
        config: BackboneConfig,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows (B, n, H) and their keys and values (B, n, 2 * kv_heads, head_dim)."""
        turning = config.heads + config.kv_heads
        rows = F.linear(self.norm1(x), self.qkv, self.qkv_bias)
        rows = rows.view(*x.shape[:2], -1, config.head_dim)
        turned = tables(rows[:, :, :turning])
        kv = torch.cat([turned[:, :, config.heads :], rows[:, :, turning:]], dim=2)
        keys, values = torch.cat([past, kv], dim=1).transpose(1, 2).chunk(2, dim=1)
        y = F.scaled_dot_product_attention(
            turned[:, :, : config.heads].transpose(1, 2),
            keys,
            values,
            attn_mask=visible,
            enable_gqa=config.heads != config.kv_heads,
        )
        x = x + F.linear(y.transpose(1, 2).flatten(2), self.output)
        return x + self.mlp(self.norm2(x)), kv


@dataclass(frozen=True, slots=True)
class Backbone:
    """All layers and the final norm."""

    config: BackboneConfig
    layers: tuple[Layer, ...]
    norm: RMSNorm
    frequency: torch.Tensor
    """Float32 (head_dim,): radians a frame, negative in the first half."""

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: BackboneConfig) -> Backbone:
        """From `prefix`layers and `prefix`norm."""
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        inverse = 1.0 / config.rope_theta**exponent
        return cls(
            config=config,
            layers=tuple(
                Layer.load(weights, f"{prefix}layers.{layer}.", config)
                for layer in range(config.layers)
            ),
            norm=RMSNorm.load(weights, f"{prefix}norm.weight", config.hidden_size, config.norm_eps),
            frequency=torch.cat([-inverse, inverse]).to(weights.device),
        )

    def __call__(
        self, x: torch.Tensor, past: Past | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next rows (B, n, H) of sequences, normed, and what they leave, as in `Past.kv`."""
        past = past or Past.none(self.config, len(x), x)
        count, earlier = x.shape[1], past.kv.shape[2]
        index = torch.arange(earlier + count, device=x.device)
        angles = (past.seen[:, None] + index[:count])[:, :, None, None].float() * self.frequency
        tables = RotaryTables(angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        distance = index[earlier:, None] - index
        inside = distance >= 0
        if self.config.window is not None:
            inside &= distance < self.config.window
        exists = index >= earlier - past.seen[:, None]
        visible = (inside & exists[:, None])[:, None]
        left = []
        for layer, block in enumerate(self.layers):
            x, kv = block(x, tables, visible, past.kv[layer], self.config)
            left.append(kv)
        return self.norm(x), torch.stack(left)
