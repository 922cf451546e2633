"""Voices that requests bring: recordings, fetched and decoded, refused where no voice is in them.

Knows sound and limits. Knows nothing of what is made of a recording.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from omni_core.encoder.media import blaming, require_wanted
from omni_core.errors import MediaError, RequestError
from omni_core.media import MediaLimits, load_audio
from omni_core.media.fetch import media_bytes
from omni_core.media.keys import media_key
from omni_core.media.patience import Stop
from omni_core.types import FloatArray, VoiceSample
from omni_ming.payloads import VoiceRecording
from omni_ming.silence import FRAME_S, QUIET
from omni_ming.speaker import SAMPLE_RATE
from omni_ming.vae.config import load_vae_config

PARAM = "voice_sample"
LEAST_S, MOST_S = 1.0, 30.0
"""Of sound that is not silence, and of the whole: less says little of a voice, and every 0.32 s is
a row of each utterance's prompt."""
LOUDEST = 4.0
"""Full scale is 1, which decoders of lossy files overshoot; no sound goes so far."""
MOST_CHARACTERS = 1000
"""Nobody says more in `MOST_S`."""


class VoiceRecordings:
    """Those for one checkpoint. Safe to share by threads."""

    def __init__(self, model_path: str, limits: MediaLimits) -> None:
        self._model_path = model_path
        seconds = min(limits.max_audio_seconds, MOST_S)
        self._limits = replace(limits, max_audio_seconds=seconds)

    def fetch(self, sample: VoiceSample, stop: Stop) -> bytes:
        """The file; waits for the host of a URL. RequestError for a text that is too long."""
        if len(sample.text) > MOST_CHARACTERS:
            raise RequestError(
                f"the text of the recording has {len(sample.text)} characters; send what is said "
                f"in it, at most {MOST_CHARACTERS}",
                param=f"{PARAM}.text",
            )
        require_wanted(stop)
        with blaming(sample.audio.param or PARAM):
            return media_bytes(sample.audio, self._limits)

    def decode(self, sample: VoiceSample, data: bytes, stop: Stop) -> VoiceRecording:
        """What the file holds. MediaError for what cannot be decoded, is too long or too short, or
        is silent; RequestCancelledError once `stop` says that nobody waits."""
        with blaming(sample.audio.param or PARAM):
            sound = load_audio(data, self._limits, sample_rate=self._rate, stop=stop)
            heard = load_audio(data, self._limits, sample_rate=SAMPLE_RATE, stop=stop)
            _check(sound, heard, self._rate)
        key = media_key(data, "voice")
        return VoiceRecording(key=key, sound=sound, heard=heard, text=sample.text.strip())

    @cached_property
    def _rate(self) -> int:
        return load_vae_config(self._model_path).sample_rate


def _check(sound: FloatArray, heard: FloatArray, rate: int) -> None:
    seconds = len(sound) / rate
    if seconds < LEAST_S:
        raise MediaError(
            f"the recording lasts {seconds:.2f} s; a voice takes {LEAST_S:g} to {MOST_S:g} s"
        )
    if not all(np.abs(samples).max() <= LOUDEST for samples in (sound, heard)):
        raise MediaError(
            f"the recording has samples that are no numbers, or over {LOUDEST:g} times full scale"
        )
    frame = round(FRAME_S * rate)
    frames = sound[: len(sound) // frame * frame].reshape(-1, frame)
    heard_s = FRAME_S * int((np.abs(frames).mean(axis=1) > QUIET).sum())
    if heard_s < LEAST_S:
        raise MediaError(
            f"{heard_s:.1f} s of the recording are not silent; a voice takes at least {LEAST_S:g} s"
        )
