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

GATHER_LIMIT_BYTES = 128 * 1024
"""Up to this size a copy of the chosen experts' weights is cheaper than sorting rows by expert."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert every row visits, scaled by sigmoid(gate(x))."""

    mlp: DenseMlp
    gate: torch.Tensor
    """(1, hidden)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden)."""
        return torch.sigmoid(F.linear(x, self.gate)) * self.mlp(x)


@dataclass(frozen=True, slots=True)
class SparseMoe:
    """Softmax router, top-k experts, optional shared expert."""

    config: MoeConfig
    router: torch.Tensor
    """(experts, hidden)."""
    gate_up: torch.Tensor
    """(experts, 2 * intermediate, hidden)."""
    down: torch.Tensor
    """(experts, hidden, intermediate)."""
    shared: SharedExpert | None

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: MoeConfig, hidden: int) -> SparseMoe:
        """From `prefix`{gate,experts.E} and, if configured, `prefix`shared_expert{,_gate}."""
        gate_up, down = weights.experts(
            f"{prefix}experts.", config.experts, hidden=hidden, inner=config.intermediate_size
        )
        router = weights.tensor(f"{prefix}gate.weight", (config.experts, hidden))
        shared = None
        if (width := config.shared_intermediate_size) is not None:
            shared = SharedExpert(
                DenseMlp.load(weights, f"{prefix}shared_expert.", hidden, width),
                weights.tensor(f"{prefix}shared_expert_gate.weight", (1, hidden)),
            )
        return cls(config, router, gate_up, down, shared)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden)."""
        chosen, share = self.route(x)
        per_expert = self.gate_up[0].numel() * self.gate_up.element_size()
        few = chosen.numel() * per_expert <= GATHER_LIMIT_BYTES
        parts = self.gathered(x, chosen) if few else self.grouped(x, chosen)
        out = torch.bmm(share.unsqueeze(1), parts).squeeze(1)
        return out if self.shared is None else out + self.shared(x)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts of each row (N, top_k) and their shares (N, top_k), from a float32 softmax."""
        probabilities = F.linear(x, self.router).softmax(dim=-1, dtype=torch.float32)
        share, chosen = probabilities.topk(self.config.top_k, dim=-1)
        if self.config.norm_topk_prob:
            share = share / share.sum(dim=-1, keepdim=True)
        return chosen, share.to(x.dtype)

    def gathered(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Each row through its experts, (N, top_k, hidden), by copying their weights per row."""
        flat = chosen.flatten()
        rows = x.repeat_interleave(chosen.shape[1], dim=0).unsqueeze(-1)
        gate, up = torch.bmm(self.gate_up[flat], rows).chunk(2, dim=1)
        return torch.bmm(self.down[flat], F.silu(gate) * up).view(*chosen.shape, -1)

    def grouped(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The same by sorting rows by expert, one product per expert, without waiting for the
        device."""
        experts = torch.arange(self.config.experts, device=x.device)
        by_expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
        rows = x[order // chosen.shape[1]]
        gate, up = F.grouped_mm(rows, self.gate_up.mT, offs=ends).chunk(2, dim=-1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.mT, offs=ends)
        unsorted = torch.empty_like(out)
        unsorted[order] = out
        return unsorted.view(*chosen.shape, -1)
