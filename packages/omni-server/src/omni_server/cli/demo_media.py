"""A question to hear and a picture to see, made on the spot.

The question is a row of vowels: two formants over a glottal pulse train, enough for a model with
random weights. Knows signals and pixels; nothing of servers.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from omni_core.media.encode import wav_bytes
from omni_core.types import FloatArray

SAMPLE_RATE = 16_000
PITCH_HZ = 120.0
VOWEL_S = 0.22
VOWELS_HZ = ((730, 1090), (270, 2290), (300, 870), (530, 1840), (570, 840))
"""First and second formant of five vowels of an adult speaker (Peterson and Barney, 1952)."""
FORMANT_WIDTH_HZ = 90.0


def spoken_question() -> bytes:
    """About a second of vowels with rising pitch, as a WAV file."""
    vowels = [
        _vowel(formants, PITCH_HZ * (1 + 0.08 * index)) for index, formants in enumerate(VOWELS_HZ)
    ]
    return wav_bytes(np.concatenate(vowels), SAMPLE_RATE)


def picture(side: int = 64) -> bytes:
    """A red disc on a blue-to-green ground, as a PNG file."""
    y, x = np.mgrid[0:side, 0:side]
    ground = np.stack([np.zeros_like(x), x * 255 // side, y * 255 // side], axis=-1)
    disc = (x - side / 2) ** 2 + (y - side / 2) ** 2 < (side / 3) ** 2
    pixels = np.where(disc[..., None], np.array([220, 40, 40]), ground).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def _vowel(formants_hz: tuple[float, ...], pitch_hz: float) -> FloatArray:
    """Harmonics of the pitch, each as loud as its distance to the formants allows."""
    t = np.arange(round(VOWEL_S * SAMPLE_RATE)) / SAMPLE_RATE
    harmonics = np.arange(pitch_hz, SAMPLE_RATE / 2, pitch_hz)
    distance = (harmonics[:, None] - np.asarray(formants_hz)) / FORMANT_WIDTH_HZ
    loudness = (1.0 / (1.0 + distance**2)).sum(axis=1)
    wave = (loudness[:, None] * np.sin(2 * np.pi * harmonics[:, None] * t)).sum(axis=0)
    envelope = np.sin(np.pi * np.arange(t.size) / t.size)
    sound: FloatArray = (0.5 * wave / np.abs(wave).max() * envelope).astype(np.float32)
    return sound
