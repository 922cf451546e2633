"""The decode step of a decoder stack: one row of each of many sequences, as a program that can be
compiled or recorded.

Knows rows, positions and the engine's attention. Knows nothing of what layers a stack has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from omni_core.engine.base import Attend, AttentionParts
from omni_core.layers.norm import RMSNorm
from omni_core.steps import StepBank


class Stack(Protocol):
    """Decoder layers and their final norm."""

    @property
    def norm(self) -> RMSNorm: ...

    def __call__(self, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Rows (N, hidden) at positions (N,), on every axis, to the last layer's output."""


@dataclass(frozen=True, slots=True)
class DecodeProgram:
    """One row of each of B sequences through a decoder (a program of `omni_core.steps`)."""

    decoder: Stack
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
        decoder: Stack,
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
