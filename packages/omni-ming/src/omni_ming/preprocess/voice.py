"""Voices that requests bring: recordings, fetched and decoded.

Knows where they are from. What a recording must be is `defaults.voice_cloning`'s, and what is made
of one is no matter here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property

from omni_core.encoder.media import blaming, require_wanted
from omni_core.media import MediaLimits
from omni_core.media.fetch import media_bytes
from omni_core.media.keys import media_key
from omni_core.media.patience import Stop
from omni_core.media.voice import check_voice_text, load_voice
from omni_core.scheduler.cache import LRU
from omni_core.specs import VoiceCloning
from omni_core.types import FloatArray, VoiceSample
from omni_ming.defaults import voice_cloning
from omni_ming.payloads import VoiceRecording

PARAM = "voice_sample"
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Of decoded recordings, of which 30 s are 7 MB and take a tenth of a second to decode."""


class VoiceRecordings:
    """Those for one checkpoint; the last `remembered` stay decoded, up to `MAX_KEPT_BYTES`. Safe to
    share by threads."""

    def __init__(
        self,
        model_path: str,
        limits: MediaLimits,
        decoding: AbstractContextManager[object],
        *,
        remembered: int,
    ) -> None:
        """`decoding` is held while one is decoded."""
        self._model_path, self._limits, self._decoding = model_path, limits, decoding
        self._decoded: LRU[list[FloatArray]] = LRU(
            max_entries=remembered,
            max_bytes=MAX_KEPT_BYTES,
            size_bytes=lambda sounds: sum(sound.nbytes for sound in sounds),
        )

    def load(self, sample: VoiceSample, stop: Stop) -> VoiceRecording:
        """What a request brings; waits for the host of a URL. Raises as `load_voice` does, and
        RequestError for a text that is too long."""
        check_voice_text(sample.text, self._wanted, f"{PARAM}.text")
        require_wanted(stop)
        with blaming(sample.audio.param or PARAM):
            data = media_bytes(sample.audio, self._limits)
            key = media_key(data, "voice")
            if (sounds := self._decoded.get(key)) is None:
                with self._decoding:
                    sounds = load_voice(data, self._wanted, self._limits, stop)
                self._decoded.put(key, sounds)
        sound, heard = sounds
        return VoiceRecording(key=key, sound=sound, heard=heard, text=sample.text.strip())

    @cached_property
    def _wanted(self) -> VoiceCloning:
        return voice_cloning(self._model_path)
