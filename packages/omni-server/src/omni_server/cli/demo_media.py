"""A question to hear and a picture to see.

The question, "What do you see in this picture?", was spoken by a small text-to-speech model into
question.flac beside this file. Knows files and pixels; nothing of servers.
"""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np
from PIL import Image

from omni_core.media.audio import load_audio
from omni_core.media.encode import wav_bytes
from omni_core.media.limits import MediaLimits

SAMPLE_RATE = 16_000


def spoken_question() -> bytes:
    """About two seconds of English, as a WAV file, which is what `input_audio` is sent as."""
    flac = files(__package__).joinpath("question.flac").read_bytes()
    return wav_bytes(load_audio(flac, MediaLimits(), sample_rate=SAMPLE_RATE), SAMPLE_RATE)


def picture(side: int = 64) -> bytes:
    """A red disc on a blue-to-green ground, as a PNG file."""
    y, x = np.mgrid[0:side, 0:side]
    ground = np.stack([np.zeros_like(x), x * 255 // side, y * 255 // side], axis=-1)
    disc = (x - side / 2) ** 2 + (y - side / 2) ** 2 < (side / 3) ** 2
    pixels = np.where(disc[..., None], np.array([220, 40, 40]), ground).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
