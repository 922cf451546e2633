"""Recordings of voices to clone: decoded, and refused where no voice can be made of them.

Knows sound and what a model wants of it (`VoiceCloning`). A server asks when a recording is
uploaded, a stage when one is spoken with, and both get the same answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from omni_core.errors import MediaError, RequestError
from omni_core.media.audio import load_audio
from omni_core.media.limits import MediaLimits
from omni_core.media.patience import Stop, never
from omni_core.specs import VoiceCloning
from omni_core.types import FloatArray

FRAME_S: Final = 0.1
"""What is silent, is so for this long at a time."""
LOUDEST: Final = 4.0
"""Full scale is 1, which decoders of lossy files overshoot; no sound goes so far."""


def load_voice(
    data: bytes, wanted: VoiceCloning, limits: MediaLimits, stop: Stop = never
) -> list[FloatArray]:
    """The recording as float32 (n,) mono, once for each of `wanted.sample_rates`.

    Raises MediaError for what cannot be decoded, lasts too long or too short, or is silent, and
    RequestCancelledError once `stop` says so.
    """
    limits = replace(limits, max_audio_seconds=min(limits.max_audio_seconds, wanted.max_s))
    sounds = [load_audio(data, limits, sample_rate=rate, stop=stop) for rate in wanted.sample_rates]
    if not all(np.abs(sound).max() <= LOUDEST for sound in sounds):
        raise MediaError(
            f"the recording has samples that are no numbers, or over {LOUDEST:g} times full scale"
        )
    _require_long(sounds[0], wanted.sample_rates[0], wanted)
    return sounds


def check_voice_text(text: str, wanted: VoiceCloning, param: str) -> None:
    """RequestError for more text than somebody says in a recording; `param` is what it names."""
    if len(text) > wanted.max_characters:
        raise RequestError(
            f"the text of the recording has {len(text)} characters; send what is said in it, at "
            f"most {wanted.max_characters}",
            param=param,
        )


def _require_long(sound: FloatArray, rate: int, wanted: VoiceCloning) -> None:
    seconds = len(sound) / rate
    if seconds < wanted.min_s:
        raise MediaError(
            f"the recording lasts {seconds:.2f} s; a voice takes {wanted.min_s:g} to "
            f"{wanted.max_s:g} s"
        )
    frame = round(FRAME_S * rate)
    frames = sound[: len(sound) // frame * frame].reshape(-1, frame)
    heard_s = FRAME_S * int((np.abs(frames).mean(axis=1) > wanted.quiet).sum())
    if heard_s < wanted.min_s:
        raise MediaError(
            f"{heard_s:.1f} s of the recording are not silent; a voice takes at least "
            f"{wanted.min_s:g} s"
        )
