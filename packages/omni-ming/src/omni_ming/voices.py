"""The voices of a checkpoint: what its Talker is given to sound like somebody.

Knows the checkpoint's reference recordings. Knows nothing of prompts or of the Talker's network.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from omni_core.errors import ConfigError
from omni_core.media import LET_THROUGH, load_audio
from omni_core.types import FloatArray
from omni_ming.defaults import TALKER, Preset, preset_voices
from omni_ming.speaker import SAMPLE_RATE, SpeakerEncoder
from omni_ming.talker.prompt import Voice
from omni_ming.vae.config import load_vae_config
from omni_ming.vae.encoder import Encoder, load_encoder, reference_latents

log = logging.getLogger("omni.ming")


class Voices(Mapping[str, Voice]):
    """The presets by name, however it is written, each made when it is first asked for. Safe to
    share by threads."""

    def __init__(self, model_path: str) -> None:
        self._model_path = model_path
        self._presets = {
            name.lower(): (name, preset) for name, preset in preset_voices(model_path).items()
        }
        self._speakers = SpeakerEncoder(model_path)
        self._made: dict[str, Voice] = {}
        self._lock = threading.Lock()
        if self._presets and not self._speakers.available:
            log.warning("%s has no speaker encoder: its voices will all sound alike", model_path)

    def __getitem__(self, name: str) -> Voice:
        """KeyError for an unknown name."""
        name, preset = self._presets[name.lower()]
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(name, preset)
            return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._presets.values())

    def __len__(self) -> int:
        return len(self._presets)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._presets

    def _make(self, name: str, preset: Preset) -> Voice:
        data = (Path(self._model_path) / TALKER / preset.file).read_bytes()
        rate = load_vae_config(self._model_path).sample_rate
        sound = load_audio(data, LET_THROUGH, sample_rate=rate)
        if not len(sound):
            raise ConfigError(f"{preset.file} of {self._model_path} has no sound")
        speaker: FloatArray | None = None
        if self._speakers.available:
            heard = load_audio(data, LET_THROUGH, sample_rate=SAMPLE_RATE)
            speaker = self._speakers(heard)
        # One draw for each voice, the same in every process.
        latents = reference_latents(self._encoder, sound, zlib.crc32(name.encode()))
        return Voice(speaker=speaker, text=preset.text, latents=latents.numpy())

    @cached_property
    def _encoder(self) -> Encoder:
        return load_encoder(self._model_path)
