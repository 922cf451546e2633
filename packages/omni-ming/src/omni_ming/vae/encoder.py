"""The encoder: sound to latents, for reference voices. Runs once for each voice; never streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.types import FloatArray
from omni_ming.vae.backbone import Backbone
from omni_ming.vae.config import ENCODER_LAYERS, VaeConfig, load_vae_config, vae_folder

SCALE_FLOOR = 1e-4
PREFIXES = (
    *(f"encoder.{part}." for part in ("fc1", "fc2", "fc3", "encoder.norm", "aggregator.norm")),
    *(f"encoder.encoder.layers.{layer}." for layer in range(ENCODER_LAYERS)),
    *(f"encoder.aggregator.layers.{layer}." for layer in range(ENCODER_LAYERS)),
    "encoder.cls_embed",
)
"""Of its weights that are used."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Sound whose length is a multiple of `samples_per_latent` to a distribution of latents."""

    config: VaeConfig
    fc1: torch.Tensor
    fc2: tuple[torch.Tensor, torch.Tensor]
    """Weight and bias."""
    fc3: tuple[torch.Tensor, torch.Tensor]
    frames: Backbone
    aggregator: Backbone
    summary: torch.Tensor
    """(hidden,): the row behind the frames of a latent that is to sum them up."""

    @classmethod
    def load(cls, weights: Weights, config: VaeConfig) -> Encoder:
        """From everything under `PREFIXES`."""
        hidden = config.encoder.hidden_size

        def linear(name: str, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
            weight = weights.tensor(f"encoder.{name}.weight", (outputs, inputs))
            return weight, weights.tensor(f"encoder.{name}.bias", (outputs,))

        return cls(
            config=config,
            fc1=weights.tensor("encoder.fc1.weight", (hidden, config.hop)),
            fc2=linear("fc2", hidden, hidden),
            fc3=linear("fc3", hidden, 2 * config.latent_dim),
            frames=Backbone.load(weights, "encoder.encoder.", config.encoder),
            aggregator=Backbone.load(weights, "encoder.aggregator.", config.encoder),
            summary=weights.tensor("encoder.cls_embed", (1, 1, hidden))[0, 0],
        )

    def __call__(self, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples (n,) to means and deviations (latents, latent_dim) of what may stand for them."""
        per_latent = self.config.frames_per_latent
        x = sound.view(1, -1, self.config.hop)
        x, _ = self.frames(F.linear(F.linear(x, self.fc1), *self.fc2))
        groups = x.view(-1, per_latent, x.shape[-1])
        summed = torch.cat([groups, self.summary.expand(len(groups), 1, -1)], dim=1)
        rows, _ = self.aggregator(summed.view(1, -1, x.shape[-1]))
        summaries = rows[0, per_latent :: per_latent + 1]
        mean, scale = F.linear(summaries, *self.fc3).chunk(2, dim=-1)
        return mean, F.softplus(scale) + SCALE_FLOOR


def load_encoder(model_path: str) -> Encoder:
    """The checkpoint's, in float32 on the CPU: voices are few, and must be the same everywhere."""
    with Checkpoint(vae_folder(model_path)) as checkpoint:
        weights = open_weights(
            checkpoint, PREFIXES, device="cpu", dtype="float32", report=lambda message: None
        )
        encoder = Encoder.load(weights, load_vae_config(model_path))
        weights.finish()
    return encoder


@torch.inference_mode()
def reference_latents(
    encoder: Encoder, sound: FloatArray, noise: torch.Tensor | int
) -> torch.Tensor:
    """Latents (n, latent_dim) of a reference at the VAE's rate: a draw from the distribution of the
    samples, which silence before them makes a whole number of patches.

    `noise` is the draw (n, latent_dim), or the seed of one: a voice must always have the same.
    """
    patch = encoder.config.samples_per_latent * encoder.config.frames_per_latent
    samples = torch.from_numpy(sound)
    samples = F.pad(samples, (-len(samples) % patch, 0))
    mean, deviation = encoder(samples)
    if isinstance(noise, int):
        noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(noise))
    return mean + deviation * noise
