"""The aggregator: one patch of latents to the row by which the language model knows it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_core.checkpoint.weights import Weights
from omni_ming.talker.blocks import Blocks, Linear
from omni_ming.talker.config import TalkerConfig

PREFIX = "aggregator."


@dataclass(frozen=True, slots=True)
class Aggregator:
    """A learned row before the latents gathers what they are (a program of `omni_core.steps`)."""

    first: torch.Tensor
    """(1, width)."""
    embed: Linear
    blocks: Blocks

    @classmethod
    def load(cls, weights: Weights, config: TalkerConfig) -> Aggregator:
        """The tensors under "aggregator."."""
        sizes = config.aggregator
        return cls(
            first=weights.tensor(f"{PREFIX}word_embedder.weight", (1, sizes.hidden_size)),
            embed=Linear.load(weights, f"{PREFIX}x_embedder", config.latent_dim, sizes.hidden_size),
            blocks=Blocks.load(
                weights, PREFIX, sizes, length=1 + config.patch, outputs=config.llm.hidden_size
            ),
        )

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """Patches (B, patch, latent_dim) to rows (B, hidden)."""
        (patches,) = tensors
        embedded = self.embed(patches.to(self.embed.weight.dtype))
        first = self.first.expand(patches.shape[0], 1, -1)  # `len` would fix the size
        return (self.blocks(torch.cat([first, embedded], dim=1), slice(1))[:, 0],)
