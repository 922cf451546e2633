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

from omni_core.engine.base import Attend, AttentionParts
from omni_core.steps import StepBank
from omni_qwen3.config import DecoderConfig
from omni_qwen3.model.layers import Attention, DenseMlp, RMSNorm, Rope, RotaryTables
from omni_qwen3.model.moe import SparseMoe
from omni_qwen3.weights import Weights

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
            RMSNorm.load(weights, f"{prefix}{name}_layernorm.weight", config)
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
            norm=weights.part(partial(RMSNorm.load, name=f"{prefix}norm.weight", config=config)),
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


@dataclass(frozen=True, slots=True)
class DecodeProgram:
    """One row of each of B sequences through a decoder (a program of `omni_core.steps`)."""

    decoder: Decoder
    attention: Callable[..., Attend]
    """`AttentionParts.build`."""

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """Rows (B, hidden), their positions (B,), then the tensors and pools of attention; to
        normed hidden states (B, hidden)."""
        x, positions, *attention = tensors
        x = self.decoder(x, positions, self.attention(*attention))
        return (self.decoder.norm(x),)


class DecodeStep:
    """The decode step of a stack."""

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        bank: StepBank,
        decode: Callable[[int], AttentionParts],
    ) -> None:
        """`decode` as in `ARRunner.prepare`."""
        parts = decode(1)
        still: tuple[dict[int, str], ...] = ({},) * len(parts.pools)

        def example(batch: int) -> tuple[torch.Tensor, ...]:
            parts, norm = decode(batch), decoder.norm.weight
            x = torch.randn(batch, len(norm), generator=torch.Generator().manual_seed(batch))
            positions = torch.zeros(batch, device=norm.device)
            return (x.to(norm.device, norm.dtype), positions, *parts.tensors, *parts.pools)

        self._step = bank.step(
            name,
            DecodeProgram(decoder, parts.build),
            dynamic=({0: "batch"}, {0: "batch"}, *parts.dynamic, *still),
            pools=len(parts.pools),
            examples=lambda: map(example, bank.batches),
        )

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, parts: AttentionParts
    ) -> torch.Tensor:
        """Rows (B, hidden) at positions (B,), on every axis, to normed hidden states (B, hidden),
        which the next call may overwrite."""
        (hidden,) = self._step(x, positions, *parts.tensors, *parts.pools)
        return hidden
