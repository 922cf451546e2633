"""The decoder: latents to sound. Knows whole sequences and single steps; what a step leaves is kept
by `stream`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_ming.vae.backbone import Backbone, Past
from omni_ming.vae.config import VaeConfig
from omni_ming.vae.istft import InverseStft, Tail

PREFIXES = ("decoder.fc1.", "decoder.decoder.layers.", "decoder.decoder.norm.", "decoder.head.out.")
"""Of its weights; the window that is stored beside them is Hann's."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """(B, latents, latent_dim) to (B, latents * samples_per_latent)."""

    config: VaeConfig
    widen: tuple[torch.Tensor, torch.Tensor]
    """Weight and bias."""
    backbone: Backbone
    head: tuple[torch.Tensor, torch.Tensor]
    istft: InverseStft

    @classmethod
    def load(cls, weights: Weights, config: VaeConfig) -> Decoder:
        """From everything under `PREFIXES`."""
        hidden, bins = config.decoder.hidden_size, 2 * (2 * config.hop + 1)
        return cls(
            config=config,
            widen=(
                weights.tensor("decoder.fc1.weight", (hidden, config.latent_dim)),
                weights.tensor("decoder.fc1.bias", (hidden,)),
            ),
            backbone=weights.part(lambda w: Backbone.load(w, "decoder.decoder.", config.decoder)),
            head=(
                weights.tensor("decoder.head.out.weight", (bins, hidden)),
                weights.tensor("decoder.head.out.bias", (bins,)),
            ),
            istft=InverseStft.of(config.hop, weights.device),
        )

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        """Whole sequences."""
        hidden, _ = self.backbone(self.frames(self.widened(latents)))
        spectrum = F.linear(hidden, *self.head)
        sound, tail = self.istft(spectrum, self.istft.begin(len(latents)))
        whole = torch.cat([sound, self.istft.finish(tail)], dim=1)
        return whole[:, self.istft.cut : -self.istft.cut]

    def widened(self, latents: torch.Tensor) -> torch.Tensor:
        """(B, n, latent_dim) to (B, n, hidden)."""
        return F.linear(latents, *self.widen)

    def frames(self, rows: torch.Tensor) -> torch.Tensor:
        """(B, n, hidden) to (B, n * frames_per_latent, hidden), between neighbours linearly."""
        scale = float(self.config.frames_per_latent)
        return F.interpolate(
            rows.transpose(1, 2), scale_factor=scale, mode="linear", align_corners=False
        ).transpose(1, 2)

    def step(
        self, frames: torch.Tensor, past: Past, tail: Tail
    ) -> tuple[torch.Tensor, torch.Tensor, Tail]:
        """The samples that the next frames (B, n, hidden) complete, what these leave in the
        backbone, and what they have begun."""
        hidden, left = self.backbone(frames, past)
        sound, tail = self.istft(F.linear(hidden, *self.head), tail)
        return sound, left, tail
