"""Voices that requests bring: recordings, fetched and decoded.

Knows where they are from. What a recording must be is `defaults.voice_cloning`'s, and what is made
of one is no matter here.
"""

from __future__ import annotations

from functools import cached_property

from omni_core.encoder.media import blaming, require_wanted
from omni_core.media import MediaLimits
from omni_core.media.fetch import media_bytes
from omni_core.media.keys import media_key
from omni_core.media.patience import Stop
from omni_core.media.voice import check_voice_text, load_voice
from omni_core.specs import VoiceCloning
from omni_core.types import VoiceSample
from omni_ming.defaults import voice_cloning
from omni_ming.payloads import VoiceRecording

PARAM = "voice_sample"


class VoiceRecordings:
    """Those for one checkpoint. Safe to share by threads."""

    def __init__(self, model_path: str, limits: MediaLimits) -> None:
        self._model_path = model_path
        self._limits = limits

    def fetch(self, sample: VoiceSample, stop: Stop) -> bytes:
        """The file; waits for the host of a URL. RequestError for a text that is too long."""
        check_voice_text(sample.text, self._wanted, f"{PARAM}.text")
        require_wanted(stop)
        with blaming(sample.audio.param or PARAM):
            return media_bytes(sample.audio, self._limits)

    def decode(self, sample: VoiceSample, data: bytes, stop: Stop) -> VoiceRecording:
        """What the file holds; raises as `load_voice` does."""
        with blaming(sample.audio.param or PARAM):
            sound, heard = load_voice(data, self._wanted, self._limits, stop)
        key = media_key(data, "voice")
        return VoiceRecording(key=key, sound=sound, heard=heard, text=sample.text.strip())

    @cached_property
    def _wanted(self) -> VoiceCloning:
        return voice_cloning(self._model_path)
