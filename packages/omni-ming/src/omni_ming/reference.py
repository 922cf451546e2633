"""What the Talker is given of a recording: latents to go on from, and who speaks.

Knows the AudioVAE's encoder and CAM++. Knows nothing of names, texts or where recordings are from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_core.types import FloatArray
from omni_ming.speaker import SpeakerEncoder
from omni_ming.vae.encoder import load_encoder, reference_latents


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """One recording."""

    latents: torch.Tensor
    """Float32 (n, latent_dim) on the CPU, n a multiple of a patch."""
    speaker: torch.Tensor | None
    """Float32 (192,) on the CPU; None where the checkpoint cannot embed: a slot of zeros then."""


class ReferenceEncoder:
    """The encoders of one checkpoint, in float32 on the CPU. Safe to share by threads."""

    def __init__(self, model_path: str) -> None:
        """OmniError for weights that are missing."""
        self._speakers = SpeakerEncoder(model_path)
        self._encoder = load_encoder(model_path)

    def __call__(self, sound: FloatArray, heard: FloatArray, *, seed: int) -> Reference:
        """`sound` (n,) is the recording at the VAE's rate, `heard` (m,) the same at
        `defaults.SPEAKER_RATE`; `seed` that of the one draw of its latents."""
        speaker = None
        if self._speakers.available:
            speaker = torch.from_numpy(self._speakers(heard))
        return Reference(reference_latents(self._encoder, sound, seed), speaker)
