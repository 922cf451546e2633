"""Rotary position embedding (Su et al., 2021): turning rows by angles that a model makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Angles of a batch of rows, each (N, 1, head_dim)."""

    cos: torch.Tensor
    signed_sin: torch.Tensor
    """Minus sine for the first half, sine for the second."""

    def rows(self, start: int, stop: int) -> RotaryTables:
        """The tables of some of the rows."""
        return RotaryTables(self.cos[start:stop], self.signed_sin[start:stop])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Turn x (..., N, heads, head_dim); the halves hold the two components of each pair."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos, swapped, self.signed_sin)
