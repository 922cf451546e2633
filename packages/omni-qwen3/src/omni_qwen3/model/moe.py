"""Mixture-of-experts feed-forward block.

Knows routing and expert weights of one layer, stacked. Knows nothing of sequences or of how experts
could be spread over devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.layers.experts import Experts, stacked_experts
from omni_core.layers.mlp import DenseMlp
from omni_qwen3.config import MoeConfig


@dataclass(frozen=True, slots=True)
class SparseMoe:
    """Softmax router, top-k experts, and an optional shared expert that every row visits, scaled
    by the sigmoid of its own gate."""

    config: MoeConfig
    router: torch.Tensor
    """(experts, hidden), with one more row for the gate of the shared expert if there is one."""
    experts: Experts

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
        return cls(config, router, stacked_experts(gate_up, down, shared))

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
