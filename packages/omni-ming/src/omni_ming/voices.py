"""Voices: what the Talker is given to sound like somebody.

Knows the checkpoint's reference recordings, and what requests bring. Knows nothing of prompts or of
the Talker's network.
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
from omni_ming.defaults import DEFAULT_VOICE, SPEAKER_RATE, TALKER, preset_voices
from omni_ming.payloads import ClonedVoice
from omni_ming.reference import ReferenceEncoder
from omni_ming.speaker import SpeakerEncoder
from omni_ming.vae.config import load_vae_config

log = logging.getLogger("omni.ming")


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """One voice."""

    prompt_text: str
    """What the reference says; "" if nobody knows."""
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
        self._made: dict[str, Voice] = {}
        self._lock = threading.Lock()
        if self._presets and not SpeakerEncoder(model_path).available:
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
        heard = load_audio(data, LET_THROUGH, sample_rate=SPEAKER_RATE)
        # One draw for each voice, the same in every process.
        made = self._references(sound, heard, seed=zlib.crc32(name.encode()))
        return Voice(preset.text, made.latents, made.speaker)

    @cached_property
    def _references(self) -> ReferenceEncoder:
        return ReferenceEncoder(self._model_path)


def voice_of(cloned: ClonedVoice) -> Voice:
    """The voice that a request brought."""
    speaker = cloned.get("speaker")
    return Voice(
        cloned["text"],
        torch.as_tensor(cloned["latents"]),
        None if speaker is None else torch.as_tensor(speaker),
    )
