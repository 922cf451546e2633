"""The transformer blocks of the flow and of the aggregator: short sequences, each row sees all.

Knows layers, and positions of a sequence whose length never changes. Knows nothing of what the rows
are. Weights are plain tensors, so that a step can be compiled (`omni_core.steps`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_ming.talker.config import TransformerConfig

NORM_EPS = 1e-6
EVERY_ROW = slice(None)


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight^T + bias."""

    weight: torch.Tensor
    """(outputs, inputs)."""
    bias: torch.Tensor

    @classmethod
    def load(cls, weights: Weights, prefix: str, inputs: int, outputs: int) -> Linear:
        """From `prefix`.weight and `prefix`.bias."""
        return cls(
            weights.tensor(f"{prefix}.weight", (outputs, inputs)),
            weights.tensor(f"{prefix}.bias", (outputs,)),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (..., inputs) to (..., outputs)."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Block:
    """Pre-norm attention and feed-forward, both with biases, GELU in its tanh form."""

    attention_norm: RMSNorm
    qkv: Linear
    """Queries, keys and values in one product, queries and keys by `_pairs_apart`."""
    output: Linear
    mlp_norm: RMSNorm
    up: Linear
    down: Linear
    heads: int

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: TransformerConfig) -> Block:
        """From everything under `prefix`."""
        width, inner = config.hidden_size, config.inner_size
        before, after = (
            RMSNorm.load(weights, f"{prefix}norm{n}.weight", width, NORM_EPS) for n in (1, 2)
        )
        parts = [Linear.load(weights, f"{prefix}attn.to_{part}", width, width) for part in "qkv"]
        apart = _pairs_apart(config, weights.device)
        order = [apart, apart, torch.arange(width, device=weights.device)]
        return cls(
            attention_norm=before,
            qkv=Linear(
                torch.cat([part.weight[o] for part, o in zip(parts, order, strict=True)]),
                torch.cat([part.bias[o] for part, o in zip(parts, order, strict=True)]),
            ),
            output=Linear.load(weights, f"{prefix}attn.to_out.0", width, width),
            mlp_norm=after,
            up=Linear.load(weights, f"{prefix}mlp.ff.0.0", width, inner),
            down=Linear.load(weights, f"{prefix}mlp.ff.2", inner, width),
            heads=config.heads,
        )

    def __call__(
        self, x: torch.Tensor, tables: RotaryTables, kept: slice = EVERY_ROW
    ) -> torch.Tensor:
        """Sequences (B, n, hidden) to their rows `kept` (B, k, hidden), which have seen all."""
        rows = self.qkv(self.attention_norm(x)).view(*x.shape[:2], 3 * self.heads, -1)
        unturned, values = rows.split_with_sizes([2 * self.heads, self.heads], dim=-2)
        queries, keys = tables(unturned).chunk(2, dim=-2)
        attended = F.scaled_dot_product_attention(
            queries[:, kept].transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        )
        x = x[:, kept] + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of one stack, and its last norm and layer."""

    blocks: tuple[Block, ...]
    tables: RotaryTables
    """Of positions 0 .. n - 1."""
    norm: RMSNorm
    last: Linear

    @classmethod
    def load(
        cls, weights: Weights, prefix: str, config: TransformerConfig, *, length: int, outputs: int
    ) -> Blocks:
        """From everything under `prefix` but the embedders, for sequences of `length` rows."""
        return cls(
            blocks=tuple(
                Block.load(weights, f"{prefix}blocks.{index}.", config)
                for index in range(config.layers)
            ),
            tables=_tables(weights, f"{prefix}rotary_embed.inv_freq", config, length),
            norm=RMSNorm.load(
                weights, f"{prefix}final_layer.norm_final.weight", config.hidden_size, NORM_EPS
            ),
            last=Linear.load(weights, f"{prefix}final_layer.linear", config.hidden_size, outputs),
        )

    def __call__(self, x: torch.Tensor, kept: slice) -> torch.Tensor:
        """Sequences (B, n, hidden) to the outputs (B, k, outputs) of the rows `kept`."""
        *blocks, final = self.blocks
        for block in blocks:
            x = block(x, self.tables)
        return self.last(self.norm(final(x, self.tables, kept)))


def _pairs_apart(config: TransformerConfig, device: torch.device) -> torch.Tensor:
    """Int64 (hidden,): the checkpoint's dimension that stands at each place of ours.

    Queries and keys are reordered alike, which leaves their products as they are. The components of
    a pair, neighbours in the checkpoint, are then half a head apart, as `RotaryTables` has them.
    """
    dims = torch.arange(config.hidden_size, device=device).view(config.heads, -1, 2)
    return dims.transpose(1, 2).flatten()


def _tables(weights: Weights, name: str, config: TransformerConfig, length: int) -> RotaryTables:
    frequency = weights.tensor(name, (config.head_dim // 2,), torch.float32)
    positions = torch.arange(length, device=weights.device, dtype=torch.float32)
    angles = (positions[:, None] * frequency)[:, None]
    cos, sin = angles.cos(), angles.sin()
    return RotaryTables(
        torch.cat([cos, cos], dim=-1).to(weights.dtype),
        torch.cat([-sin, sin], dim=-1).to(weights.dtype),
    )
