"""The experts of one mixture-of-experts layer, stacked, beside one that every row visits.

Knows which experts a row is given and its shares of them. Knows nothing of how they are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from omni_core.layers.mlp import DenseMlp

DENSE_LIMIT_BYTES = 2 * 1024**2
"""Up to this size it is cheaper to run all experts of a layer than to pick some: two products stay
in a CPU's cache, and picking takes more calls than they do."""


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """Every row through every expert in two products, each expert's part times its share."""

    gate_up: torch.Tensor
    """(2 * width, hidden): the gates of all experts, then of the shared one; then their ups."""
    down: torch.Tensor
    """(hidden, width)."""
    experts: int
    """Routed ones; the shared one's part of the width comes after theirs."""
    inner: int
    """Width of one routed expert."""

    @classmethod
    def of(cls, gate_up: torch.Tensor, down: torch.Tensor, shared: DenseMlp | None) -> DenseExperts:
        """From stacked experts (E, 2 * inner, hidden) and (E, hidden, inner)."""
        experts, _, inner = down.shape
        gates, ups = (part.flatten(0, 1) for part in gate_up.chunk(2, dim=1))
        downs = down.transpose(0, 1).flatten(1)
        if shared is not None:
            shared_gate, shared_up = shared.gate_up.chunk(2)
            gates, ups = torch.cat([gates, shared_gate]), torch.cat([ups, shared_up])
            downs = torch.cat([downs, shared.down], dim=1)
        return cls(torch.cat([gates, ups]), downs.contiguous(), experts, inner)

    def __call__(
        self,
        x: torch.Tensor,
        chosen: torch.Tensor,
        share: torch.Tensor,
        shared_share: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden); without `shared_share`, all of the shared expert."""
        width = self.down.shape[1]
        gate, up = F.linear(x, self.gate_up).split_with_sizes([width, width], dim=-1)
        parts = F.silu(gate).mul_(up)
        widths = [self.experts * self.inner, width - self.experts * self.inner]
        routed, own = parts.split_with_sizes(widths, dim=-1)
        if shared_share is not None:
            own.mul_(shared_share)
        shares = x.new_zeros(x.shape[0], self.experts).scatter_(1, chosen, share)
        routed.view(-1, self.experts, self.inner).mul_(shares.unsqueeze(-1))
        return F.linear(parts, self.down)


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """Each row through its experts alone: rows sorted by expert, one product per expert."""

    gate_up: torch.Tensor
    """(experts, 2 * inner, hidden)."""
    down: torch.Tensor
    """(experts, hidden, inner)."""
    shared: DenseMlp | None

    def __call__(
        self,
        x: torch.Tensor,
        chosen: torch.Tensor,
        share: torch.Tensor,
        shared_share: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden), without waiting for the device; without `shared_share`,
        all of the shared expert."""
        experts = torch.arange(len(self.down), device=x.device)
        by_expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
        rows = x[order // chosen.shape[1]]
        gate, up = F.grouped_mm(rows, self.gate_up.mT, offs=ends).chunk(2, dim=-1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.mT, offs=ends)
        parts = torch.empty_like(out)
        parts[order] = out
        mixed = torch.bmm(share.unsqueeze(1), parts.view(*chosen.shape, -1)).squeeze(1)
        if self.shared is None:
            return mixed
        own = self.shared(x)
        return mixed + (own if shared_share is None else shared_share * own)


Experts: TypeAlias = DenseExperts | GroupedExperts


def stacked_experts(gate_up: torch.Tensor, down: torch.Tensor, shared: DenseMlp | None) -> Experts:
    """The form that is faster for experts (E, 2 * inner, hidden) and (E, hidden, inner)."""
    if gate_up.nbytes + down.nbytes <= DENSE_LIMIT_BYTES:
        return DenseExperts.of(gate_up, down, shared)
    return GroupedExperts(gate_up, down, shared)
