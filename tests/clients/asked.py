"""What the clients ask for: names, keys, short greedy replies, and a sound to send."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np

from families import FAMILY
from omni_core.types import FloatArray

MODEL = "tiny-omni"
KEY, OTHER_KEY = "sk-clients", "sk-somebody-else"
RATE_LIMIT = 300
"""Requests a minute of one key, which are as many at once."""
REQUEST_DEADLINE_S = 120.0

VOICE = FAMILY.voices[0]
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Tell me about the sea."}]
TEXT_AND_AUDIO = ["text", "audio"]
TALKER_BRIEF = {
    "seed": 1,
    "stage_params": {
        FAMILY.speaker: {"temperature": 0, "ignore_eos": True, "max_tokens": FAMILY.brief}
    },
}
BRIEF: dict[str, Any] = {
    "model": MODEL,
    "messages": QUESTION,
    "temperature": 0,
    "max_tokens": 12,
    "extra_body": {**TALKER_BRIEF, **FAMILY.ends},
}
"""A short reply that is the same each time."""
READING: dict[str, Any] = {
    "model": MODEL,
    "input": "What is two plus two?",
    "voice": VOICE,
    "extra_body": TALKER_BRIEF,
}

RECORDING_RATE = 48_000
RECORDINGS = {
    "wav": ("wav", "pcm_s16le", "s16"),
    "flac": ("flac", "flac", "s16"),
    "mp3": ("mp3", "libmp3lame", "fltp"),
    "m4a": ("ipod", "aac", "fltp"),
    "mp4": ("mp4", "aac", "fltp"),
    "ogg": ("ogg", "libopus", "flt"),
    "webm": ("webm", "libopus", "flt"),
}
"""Container, codec and sample format of each kind of upload."""


def tone(seconds: float) -> FloatArray:
    """A rising tone at `RECORDING_RATE`."""
    t = np.arange(round(seconds * RECORDING_RATE)) / RECORDING_RATE
    return (0.4 * np.sin(2 * np.pi * (200 + 300 * t) * t)).astype("f4")


def recorded(samples: FloatArray, kind: str, *, live: bool = False) -> bytes:
    """A file of `RECORDINGS`; `live` as MediaRecorder writes it, which cannot go back to say how
    long it became."""
    container, codec, sample_format = RECORDINGS[kind]
    file = io.BytesIO()
    options = {"live": "1"} if live else {}
    with av.open(file, "w", format=container, options=options) as out:
        track = out.add_stream(codec, rate=RECORDING_RATE, layout="mono", format=sample_format)
        resampler = av.AudioResampler(
            sample_format, "mono", RECORDING_RATE, frame_size=track.frame_size
        )
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = RECORDING_RATE
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(track.encode(piece))
        out.mux(track.encode(None))
    return file.getvalue()
