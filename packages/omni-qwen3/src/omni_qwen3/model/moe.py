"""Mixture-of-experts feed-forward block.

Knows routing and expert weights of one layer, stacked. Knows nothing of sequences or of how experts
could be spread over devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_qwen3.config import MoeConfig
from omni_qwen3.model.layers import DenseMlp
from omni_qwen3.weights import Weights

DENSE_LIMIT_BYTES = 512 * 1024
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
        shared_share: torch.Tensor | None,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden)."""
        width = self.down.shape[1]
        gate, up = F.linear(x, self.gate_up).split_with_sizes([width, width], dim=-1)
        parts = F.silu(gate).mul_(up)
        routed = parts
        if shared_share is not None:
            widths = [self.experts * self.inner, width - self.experts * self.inner]
            routed, own = parts.split_with_sizes(widths, dim=-1)
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
        shared_share: torch.Tensor | None,
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden), without waiting for the device."""
        experts = torch.arange(len(self.down), device=x.device)
        by_expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
        rows = x[order // chosen.shape[1]]
        gate, up = F.grouped_mm(rows, self.gate_up.mT, offs=ends).chunk(2, dim=-1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.mT, offs=ends)
        parts = torch.empty_like(out)
        parts[order] = out
        mixed = torch.bmm(share.unsqueeze(1), parts.view(*chosen.shape, -1)).squeeze(1)
        if self.shared is None or shared_share is None:
            return mixed
        return mixed + shared_share * self.shared(x)


@dataclass(frozen=True, slots=True)
class SparseMoe:
    """Softmax router, top-k experts, and an optional shared expert that every row visits, scaled
    by the sigmoid of its own gate."""

    config: MoeConfig
    router: torch.Tensor
    """(experts, hidden), with one more row for the gate of the shared expert if there is one."""
    experts: DenseExperts | GroupedExperts

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: MoeConfig, hidden: int) -> SparseMoe:
        """From `prefix`{gate,experts.E} and, if configured, `prefix`shared_expert{,_gate}."""
        gate_up, down = weights.experts(
            f"{prefix}experts.", config.experts, hidden=hidden, inner=config.intermediate_size
        )
        names, rows = [f"{prefix}gate.weight"], [config.experts]
        shared = None
        if (width := config.shared_intermediate_size) is not None:
            shared = DenseMlp.load(weights, f"{prefix}shared_expert.", hidden, width)
            names.append(f"{prefix}shared_expert_gate.weight")
            rows.append(1)
        return cls.of(config, weights.fused(names, rows, hidden), gate_up, down, shared)

    @classmethod
    def of(
        cls,
        config: MoeConfig,
        router: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        shared: DenseMlp | None,
    ) -> SparseMoe:
        """From stacked experts (E, 2 * inner, hidden) and (E, hidden, inner)."""
        size_bytes = gate_up.nbytes + down.nbytes
        if size_bytes <= DENSE_LIMIT_BYTES:
            return cls(config, router, DenseExperts.of(gate_up, down, shared))
        return cls(config, router, GroupedExperts(gate_up, down, shared))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden)."""
        logits, shared_share = F.linear(x, self.router), None
        if self.config.shared_intermediate_size is not None:
            logits, gate = logits.split_with_sizes([self.config.experts, 1], dim=-1)
            shared_share = gate.sigmoid()
        chosen, share = self.route(logits)
        return self.experts(x, chosen, share, shared_share)

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts of each row (N, top_k) and their shares (N, top_k), by a float32 softmax of
        logits (N, experts)."""
        if (
            self.config.norm_topk_prob
        ):  # shares that are scaled to a sum of 1: a softmax of their own
            best, chosen = logits.topk(self.config.top_k, dim=-1)
            return chosen, best.softmax(dim=-1, dtype=torch.float32).to(logits.dtype)
        probabilities = logits.softmax(dim=-1, dtype=torch.float32)
        share, chosen = probabilities.topk(self.config.top_k, dim=-1)
        return chosen, share.to(logits.dtype)
