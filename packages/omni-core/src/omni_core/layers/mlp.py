"""The gated feed-forward block of decoders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(silu(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020)."""

    gate_up: torch.Tensor
    """(2 * intermediate, hidden)."""
    down: torch.Tensor
    """(hidden, intermediate)."""

    @classmethod
    def load(cls, weights: Weights, prefix: str, hidden: int, inner: int) -> DenseMlp:
        """From `prefix`{gate,up,down}_proj."""
        names = [f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"]
        return cls(
            weights.fused(names, rows=[inner, inner], columns=hidden),
            weights.tensor(f"{prefix}down_proj.weight", (hidden, inner)),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (..., hidden) to (..., hidden)."""
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down)
