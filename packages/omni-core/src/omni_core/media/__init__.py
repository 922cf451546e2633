"""Media in and out: fetching, decoding and encoding of images, audio and video.

Needs the `media` extra (av, httpcore, Pillow, soundfile, soxr). Nothing else in core imports it.
"""

from omni_core.media.audio import load_audio
from omni_core.media.budget import RequestBudget
from omni_core.media.dataurl import decode_base64
from omni_core.media.encode import (
    AUDIO_MEDIA_TYPES,
    encode_audio,
    pcm16,
    wav_bytes,
    wav_header,
)
from omni_core.media.fetch import fetch, media_bytes
from omni_core.media.image import load_image
from omni_core.media.limits import LET_THROUGH, MediaLimits
from omni_core.media.once import SharedFetches
from omni_core.media.timeline import FrameChoice, Timeline, sample_times
from omni_core.media.video import VideoClip, load_video

__all__ = [
    "AUDIO_MEDIA_TYPES",
    "LET_THROUGH",
    "FrameChoice",
    "MediaLimits",
    "RequestBudget",
    "SharedFetches",
    "Timeline",
    "VideoClip",
    "decode_base64",
    "encode_audio",
    "fetch",
    "load_audio",
    "load_image",
    "load_video",
    "media_bytes",
    "pcm16",
    "sample_times",
    "wav_bytes",
    "wav_header",
]
