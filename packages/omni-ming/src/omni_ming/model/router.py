"""Which experts a row visits: three routers, one for text and one for each kind of media.

Router logits are computed in float32 whatever the model's dtype, as the authors do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.layers.experts import Experts, stacked_experts
from omni_core.layers.mlp import DenseMlp
from omni_ming.model.config import MoeConfig

TEXT, IMAGE, AUDIO = 0, 1, 2
"""Kinds of rows; a video's rows are images."""
GATES = ("gate", "image_gate", "audio_gate")
"""What the checkpoint calls the routers, by kind."""


@dataclass(frozen=True, slots=True)
class MultiRouter:
    """Sigmoid scores; a bias that only selects; the best experts of the best groups."""

    config: MoeConfig
    weights: tuple[torch.Tensor, ...]
    """Float32 (experts, hidden), by kind."""
    biases: tuple[torch.Tensor, ...]
    """Float32 (experts,), by kind."""

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: MoeConfig, hidden: int) -> MultiRouter:
        """From `prefix`{gate,image_gate,audio_gate}.{weight,expert_bias}."""
        single = torch.float32
        shape = (config.experts, hidden)
        gates = [weights.tensor(f"{prefix}{gate}.weight", shape, single) for gate in GATES]
        biases = [
            weights.tensor(f"{prefix}{gate}.expert_bias", shape[:1], single) for gate in GATES
        ]
        return cls(config, tuple(gates), tuple(biases))

    def __call__(
        self, x: torch.Tensor, kinds: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts (N, top_k) of rows (N, hidden) and their shares (N, top_k), by the kind (N,) of
        each row; None where all is text."""
        logits, bias = self._logits(x.float(), kinds)
        scores = logits.sigmoid()
        chosen = self._best(scores + bias)
        shares = scores.gather(1, chosen)
        shares = shares / (shares.sum(dim=-1, keepdim=True) + 1e-20) * self.config.scale
        return chosen, shares.to(x.dtype)

    def _logits(
        self, x: torch.Tensor, kinds: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if kinds is None:
            return F.linear(x, self.weights[TEXT]), self.biases[TEXT]
        logits = torch.stack([F.linear(x, weight) for weight in self.weights])
        rows = torch.arange(x.shape[0], device=x.device)
        return logits[kinds, rows], torch.stack(self.biases)[kinds]

    def _best(self, ranks: torch.Tensor) -> torch.Tensor:
        """The top_k experts within the groups whose two best ranks sum highest."""
        config = self.config
        grouped = ranks.view(ranks.shape[0], config.groups, -1)
        group_ranks = grouped.topk(2, dim=-1).values.sum(dim=-1)
        groups = group_ranks.topk(config.top_groups, dim=-1).indices
        open_groups = torch.zeros_like(group_ranks, dtype=torch.bool).scatter_(1, groups, True)
        ranks = grouped.masked_fill(~open_groups.unsqueeze(-1), float("-inf")).flatten(1)
        return ranks.topk(config.top_k, dim=-1).indices


@dataclass(frozen=True, slots=True)
class RoutedMoe:
    """The routed experts beside the one that every row visits."""

    router: MultiRouter
    experts: Experts

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: MoeConfig, hidden: int) -> RoutedMoe:
        """From `prefix`{experts.E,shared_experts} and what `MultiRouter` reads."""
        gate_up, down = weights.experts(
            f"{prefix}experts.", config.experts, hidden=hidden, inner=config.intermediate_size
        )
        shared = DenseMlp.load(
            weights, f"{prefix}shared_experts.", hidden, config.shared_intermediate_size
        )
        router = MultiRouter.load(weights, prefix, config, hidden)
        return cls(router, stacked_experts(gate_up, down, shared))

    def __call__(self, x: torch.Tensor, kinds: torch.Tensor | None) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden)."""
        chosen, share = self.router(x, kinds)
        return self.experts(x, chosen, share)
