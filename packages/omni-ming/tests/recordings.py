"""Sounds to clone a voice from, as files."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from omni_core.types import FloatArray

RATE = 48_000


def hum(seconds: float, *, pitch: float = 180.0, loud: float = 0.3) -> FloatArray:
    """A noisy tone at `RATE`."""
    times = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(0).standard_normal(times.size)
    tone: FloatArray = (loud * (np.sin(2 * np.pi * pitch * times) + 0.1 * noise)).astype(np.float32)
    return tone


def wav(sound: FloatArray) -> bytes:
    """The file, in floats."""
    file = io.BytesIO()
    soundfile.write(file, sound, RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()
