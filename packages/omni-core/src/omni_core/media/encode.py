"""Speech out: float32 samples to the audio formats the OpenAI API names.

Knows headers and encoders. Whole utterances only, apart from the header of an endless WAV stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO

import av
import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from omni_core.errors import RequestError
from omni_core.types import FloatArray

AUDIO_MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm16": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
"""Media type of each format `encode_audio` writes; "opus" is in Ogg, "aac" in ADTS frames."""

_FULL_SCALE = 32_768
_UNKNOWN_SIZE = 0xFFFF_FFFF
_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_BLOCK_FRAMES = 24_000
_AAC_FRAME = 1_024

AAC_BIT_RATE = 96_000
"""Per second. Enough that speech stays the waveform it was (correlation over 0.999)."""
_MP3_QUALITY: dict[str, str | float] = {"bitrate_mode": "CONSTANT", "compression_level": 0.2}
_OPUS_QUALITY: dict[str, str | float] = {"compression_level": 0.5}
"""For libsndfile, where 0 is the codec's highest bit rate and 1 its lowest: 128 kbit/s at 24 kHz,
for the same reason. Its defaults, 57 and 34 kbit/s, keep 0.997 and 0.990."""

MPEG_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
"""In Hz, that the codecs know."""


def pcm16(samples: FloatArray) -> bytes:
    """Float samples in [-1, 1] as signed 16-bit little-endian, rounded and clipped.

    The inverse of reading: x / 32768 for any 16-bit x gives that x back.
    """
    scaled = np.rint(samples.astype(np.float32, copy=False) * _FULL_SCALE)
    return np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1).astype("<i2").tobytes()


def wav_header(sample_rate: int, n_samples: int | None) -> bytes:
    """The 44 bytes before 16-bit mono PCM; None for a stream whose length is not known yet.

    An unknown length is written as 0xFFFFFFFF in both size fields, which players read as "until
    the end", as OpenAI's own streams do.
    """
    n_bytes = _UNKNOWN_SIZE if n_samples is None else 2 * n_samples
    riff_bytes = _UNKNOWN_SIZE if n_samples is None else n_bytes + _WAV_HEADER.size - 8
    return _WAV_HEADER.pack(
        b"RIFF", riff_bytes, b"WAVE",
        b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16,
        b"data", n_bytes,
    )  # fmt: skip


def wav_bytes(samples: FloatArray | npt.NDArray[np.int16], sample_rate: int) -> bytes:
    """A complete 16-bit mono WAV file of float32 or int16 samples (n,)."""
    header = wav_header(sample_rate, len(samples))
    if samples.dtype == np.int16:
        return b"".join((header, np.ascontiguousarray(samples, "<i2").data))
    return _in_blocks(header, samples.astype(np.float32, copy=False))


def encode_audio(samples: FloatArray, sample_rate: int, fmt: str) -> bytes:
    """Encode mono samples (n,), clipped to [-1, 1], as one of `AUDIO_MEDIA_TYPES`.

    A rate that the format does not know (44.1 kHz Opus, say) is resampled to the next it does.
    Raises RequestError on "audio.format" for another name.
    """
    encoder = _ENCODERS.get(fmt)
    if encoder is None:
        raise RequestError(
            f"Audio format {fmt!r} is not supported; use one of {', '.join(_ENCODERS)}.",
            param="audio.format",
        )
    return encoder(np.clip(samples, -1.0, 1.0), sample_rate)


def _pcm16(samples: FloatArray, sample_rate: int) -> bytes:
    return _in_blocks(b"", samples)


def _in_blocks(header: bytes, samples: FloatArray) -> bytes:
    """A header and 16-bit samples, copied a second at a time: one copy of minutes would keep the
    interpreter from every other thread."""
    file = BytesIO()
    file.write(header)
    for start in range(0, len(samples), _BLOCK_FRAMES):
        file.write(pcm16(samples[start : start + _BLOCK_FRAMES]))
    return file.getvalue()


def _flac(samples: FloatArray, sample_rate: int) -> bytes:
    return _soundfile(samples, sample_rate, "FLAC", "PCM_16")


def _mp3(samples: FloatArray, sample_rate: int) -> bytes:
    samples, rate = _at_known_rate(samples, sample_rate, MPEG_RATES)
    return _soundfile(samples, rate, "MP3", "MPEG_LAYER_III", **_MP3_QUALITY)


def _opus(samples: FloatArray, sample_rate: int) -> bytes:
    samples, rate = _at_known_rate(samples, sample_rate, OPUS_RATES)
    return _soundfile(samples, rate, "OGG", "OPUS", **_OPUS_QUALITY)


def _soundfile(
    samples: FloatArray, sample_rate: int, container: str, subtype: str, **quality: str | float
) -> bytes:
    buffer = BytesIO()
    with soundfile.SoundFile(
        buffer, "w", sample_rate, channels=1, format=container, subtype=subtype, **quality
    ) as file:
        # libsndfile's Ogg encoders keep a whole write on the stack.
        for start in range(0, len(samples), _BLOCK_FRAMES):
            file.write(samples[start : start + _BLOCK_FRAMES])
    return buffer.getvalue()


def _aac(samples: FloatArray, sample_rate: int) -> bytes:
    samples, rate = _at_known_rate(samples, sample_rate, MPEG_RATES)
    buffer = BytesIO()
    with av.open(buffer, "w", format="adts") as container:
        stream = container.add_stream("aac", rate=rate, layout="mono", bit_rate=AAC_BIT_RATE)
        for start in range(0, len(samples), _AAC_FRAME):
            block = np.ascontiguousarray(samples[None, start : start + _AAC_FRAME], np.float32)
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            frame.sample_rate = rate
            frame.pts = start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def _at_known_rate(
    samples: FloatArray, sample_rate: int, rates: tuple[int, ...]
) -> tuple[FloatArray, int]:
    if sample_rate in rates:
        return samples, sample_rate
    rate = next((known for known in rates if known > sample_rate), rates[-1])
    return soxr.resample(samples, sample_rate, rate, quality="HQ"), rate


_ENCODERS: dict[str, Callable[[FloatArray, int], bytes]] = {
    "wav": wav_bytes,
    "pcm16": _pcm16,
    "flac": _flac,
    "mp3": _mp3,
    "opus": _opus,
    "aac": _aac,
}
