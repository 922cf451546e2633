"""Audio as the API names it. The encoding itself is `omni_core.media`'s.

Samples are float32 mono in [-1, 1] at the model's own rate; no resampling happens here.
"""

from __future__ import annotations

import base64

from omni_core.media.encode import AUDIO_MEDIA_TYPES, encode_audio
from omni_core.types import FloatArray

FORMATS = tuple(AUDIO_MEDIA_TYPES)
STREAM_FORMAT = "pcm16"


def to_base64(samples: FloatArray, sample_rate: int, audio_format: str) -> str:
    """Samples as a base64 file of one of `FORMATS`."""
    return base64.b64encode(encode_audio(samples, sample_rate, audio_format)).decode("ascii")
