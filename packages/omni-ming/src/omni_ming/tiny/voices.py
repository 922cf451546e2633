"""The preset voices of the tiny checkpoint: what they say, and sounds in place of recordings."""

from __future__ import annotations

import io
import wave
from typing import Final

import numpy as np

VOICE_NAMES: Final = {
    "DB30": {"prompt_text": "感谢你的认可。", "prompt_wav_path": "data/spks/prompt.wav"},
    "lingguang": {
        "prompt_text": "诶，你今天有空吗？我们能不能聊聊这件事啊？",
        "prompt_wav_path": "data/lg/prompt_15014.wav",
    },
}
"""Contents of talker/data/voice_name.json."""
_SOUNDS: Final = {
    "data/spks/prompt.wav": (44_100, 0.9, 180.0),
    "data/lg/prompt_15014.wav": (16_000, 1.1, 240.0),
}
"""{file: (sample rate, seconds, pitch in Hz)}, in the order they are drawn in."""


def recordings(rng: np.random.Generator) -> dict[str, bytes]:
    """{file: WAV of a noisy hum}."""
    return {name: _wav(rng, *sound) for name, sound in _SOUNDS.items()}


def _wav(rng: np.random.Generator, sample_rate: int, seconds: float, pitch: float) -> bytes:
    times = np.arange(int(sample_rate * seconds)) / sample_rate
    samples = (
        0.3 * np.sin(2 * np.pi * pitch * times)
        + 0.1 * np.sin(2 * np.pi * 3 * pitch * times)
        + 0.02 * rng.standard_normal(times.size)
    )
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(sample_rate)
        written.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()
