"""The network of the flow (DiT): where latents move to, given what came before them and a row of
the language model.

Knows one moment of the flow. Knows nothing of how one is solved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_ming.talker.blocks import Blocks, Linear
from omni_ming.talker.config import TalkerConfig

PREFIX = "cfm.model."
TIME_FREQUENCIES = 128
TIME_SCALE = 1000.0
"""Moments from 0 to 1 are embedded as 0 to 1000."""
LONGEST_PERIOD = 10_000


@dataclass(frozen=True, slots=True)
class TimeEmbedder:
    """Sines and cosines of a moment, then two layers (Ho et al., 2020)."""

    frequencies: torch.Tensor
    """Float32 (TIME_FREQUENCIES,)."""
    inner: Linear
    outer: Linear

    @classmethod
    def load(cls, weights: Weights, width: int) -> TimeEmbedder:
        """From "t_embedder.time_mlp." of the flow."""
        step = math.log(LONGEST_PERIOD) / (TIME_FREQUENCIES - 1)
        line = torch.arange(TIME_FREQUENCIES, device=weights.device, dtype=torch.float32)
        prefix = f"{PREFIX}t_embedder.time_mlp."
        return cls(
            frequencies=torch.exp(-step * line),
            inner=Linear.load(weights, f"{prefix}0", 2 * TIME_FREQUENCIES, width),
            outer=Linear.load(weights, f"{prefix}2", width, width),
        )

    def __call__(self, moment: torch.Tensor) -> torch.Tensor:
        """Float32 (1,) to (1, width)."""
        angles = TIME_SCALE * moment[:, None] * self.frequencies
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
        return self.outer(F.silu(self.inner(waves.to(self.inner.weight.dtype))))


@dataclass(frozen=True, slots=True)
class Dit:
    """One row of time and condition, then the latents: those of the past, and those that move."""

    time: TimeEmbedder
    condition: Linear
    embed: Linear
    blocks: Blocks
    patch: int

    @classmethod
    def load(cls, weights: Weights, config: TalkerConfig) -> Dit:
        """The tensors under "cfm.model."."""
        width = config.flow.hidden_size
        return cls(
            time=TimeEmbedder.load(weights, width),
            condition=Linear.load(
                weights, f"{PREFIX}c_embedder.cond_embedder", config.llm.hidden_size, width
            ),
            embed=Linear.load(weights, f"{PREFIX}x_embedder", config.latent_dim, width),
            blocks=Blocks.load(
                weights,
                PREFIX,
                config.flow,
                length=1 + config.history + config.patch,
                outputs=config.latent_dim,
            ),
            patch=config.patch,
        )

    def __call__(
        self,
        x: torch.Tensor,
        history: torch.Tensor,
        condition: torch.Tensor,
        moment: torch.Tensor,
    ) -> torch.Tensor:
        """Velocity (B, patch, latent_dim) of `x`, of the same shape, after `history` (B, past,
        latent_dim), for rows `condition` (B, hidden) at `moment` (1,)."""
        head = self.time(moment) + self.condition(condition)
        latents = self.embed(torch.cat([history, x], dim=1).to(head.dtype))
        return self.blocks(torch.cat([head[:, None], latents], dim=1), slice(-self.patch, None))
