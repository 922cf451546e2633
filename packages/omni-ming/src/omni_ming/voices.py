"""The voices of a checkpoint: what its Talker is given to sound like somebody.

Knows the checkpoint's reference recordings. Knows nothing of prompts or of the Talker's network.
"""

from __future__ import annotations

import logging
import threading
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from omni_core.errors import ConfigError, RequestError
from omni_core.media import LET_THROUGH, load_audio
from omni_ming.defaults import DEFAULT_VOICE, TALKER, preset_voices
from omni_ming.speaker import SAMPLE_RATE, SpeakerEncoder
from omni_ming.vae.config import load_vae_config
from omni_ming.vae.encoder import Encoder, load_encoder, reference_latents

log = logging.getLogger("omni.ming")


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """One voice."""

    name: str
    prompt_text: str
    """What the reference says."""
    latents: torch.Tensor
    """Float32 (n, latent_dim) on the CPU, n a multiple of a patch."""
    speaker: torch.Tensor | None
    """Float32 (192,) on the CPU; None where the checkpoint cannot embed: a slot of zeros then."""


class Voices:
    """The presets, each made when it is first asked for. Safe to share by threads."""

    def __init__(self, model_path: str, *, ready: bool = False) -> None:
        """`ready`: make all of them now, so that no request waits for its voice."""
        self._model_path = model_path
        self._presets = preset_voices(model_path)
        self._speakers = SpeakerEncoder(model_path)
        self._made: dict[str, Voice] = {}
        self._lock = threading.Lock()
        if self._presets and not self._speakers.available:
            log.warning("%s has no speaker encoder: its voices will all sound alike", model_path)
        for name in self._presets if ready else ():
            self.get(name)

    def get(self, name: str | None) -> Voice | None:
        """A voice by name, however it is written, or the default one; None for a checkpoint without
        voices. RequestError for an unknown name."""
        if not self._presets:
            return None
        names = {known.lower(): known for known in self._presets}
        wanted = (name or DEFAULT_VOICE).lower()
        if name is None and wanted not in names:
            wanted = next(iter(names))
        if wanted not in names:
            raise RequestError(
                f"there is no voice {name!r}; this checkpoint has {', '.join(self._presets)}",
                param="voice",
            )
        with self._lock:
            if wanted not in self._made:
                self._made[wanted] = self._make(names[wanted])
            return self._made[wanted]

    def _make(self, name: str) -> Voice:
        preset = self._presets[name]
        data = (Path(self._model_path) / TALKER / preset.file).read_bytes()
        rate = load_vae_config(self._model_path).sample_rate
        sound = load_audio(data, LET_THROUGH, sample_rate=rate)
        if not len(sound):
            raise ConfigError(f"{preset.file} of {self._model_path} has no sound")
        speaker = None
        if self._speakers.available:
            heard = load_audio(data, LET_THROUGH, sample_rate=SAMPLE_RATE)
            speaker = torch.from_numpy(self._speakers(heard))
        # One draw for each voice, the same in every process.
        latents = reference_latents(self._encoder, sound, zlib.crc32(name.encode()))
        return Voice(name, preset.text, latents, speaker)

    @cached_property
    def _encoder(self) -> Encoder:
        return load_encoder(self._model_path)
