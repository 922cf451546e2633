"""What a player makes of a file, by FFmpeg: its container, codec, rate, channels and samples.

Knows what each format of the API must look like, and how samples are compared. Knows no route.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import av
import numpy as np
import soxr

from families import FAMILY
from omni_core.types import FloatArray

MODEL_RATE = FAMILY.rate
CODEC_FRAME_S = FAMILY.frame_s
PCM_TOLERANCE = 2e-4 + 1 / 65_536
"""Between two runs of one request, which may be in other batches; and a 16-bit rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What a file of one of the API's formats is."""

    container: str
    codec: str
    rate: int
    lossless: bool = False
    priming_s: float = 0.0
    """The longest silence that the codec puts before and after what it was given, in seconds,
    where no header says so."""


FORMATS = {
    "wav": Format(container="wav", codec="pcm_s16le", rate=MODEL_RATE, lossless=True),
    "flac": Format(container="flac", codec="flac", rate=MODEL_RATE, lossless=True),
    "mp3": Format(container="mp3", codec="mp3float", rate=MODEL_RATE, priming_s=3_409 / MODEL_RATE),
    "opus": Format(container="ogg", codec="opus", rate=48_000),
    "aac": Format(container="aac", codec="aac", rate=MODEL_RATE, priming_s=2_048 / MODEL_RATE),
}
"""Those with a header; the others are bare samples."""
BARE = ("pcm", "pcm16")
SPEECH_PCM_RATE = 24_000
"""Of bare samples that are read aloud, whatever the model's rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A decoded file."""

    container: str
    codec: str
    rate: int
    channels: int
    samples: FloatArray
    """Mono, at the file's own rate."""

    def at(self, rate: int) -> FloatArray:
        """The samples at another rate."""
        if rate == self.rate:
            return self.samples
        resampled: FloatArray = soxr.resample(self.samples, self.rate, rate, quality="HQ")
        return resampled


def hear(data: bytes, audio_format: str) -> Heard:
    """Decode a file as one of `FORMATS`, or bare samples at the rate that clients take them for."""
    if audio_format in BARE:
        assert len(data) % 2 == 0
        samples = np.frombuffer(data, "<i2").astype("f4") / 32_768
        rate = SPEECH_PCM_RATE if audio_format == "pcm" else MODEL_RATE
        return Heard(container="", codec="pcm_s16le", rate=rate, channels=1, samples=samples)
    with av.open(io.BytesIO(data)) as file:
        track = file.streams.audio[0]
        resampler = av.AudioResampler(format="flt", layout="mono", rate=track.rate)
        frames = [f for frame in file.decode(audio=0) for f in resampler.resample(frame)]
        frames += resampler.resample(None)
        return Heard(
            container=file.format.name,
            codec=track.codec_context.name,
            rate=track.rate,
            channels=track.codec_context.channels,
            samples=np.concatenate([frame.to_ndarray()[0] for frame in frames]),
        )


def aligned(samples: FloatArray, reference: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both without what comes before the reference begins in `samples`, and equally long."""
    size = len(samples) + len(reference)
    spectrum = np.fft.rfft(samples, size) * np.conj(np.fft.rfft(reference, size))
    lag = int(np.argmax(np.fft.irfft(spectrum, size)[: len(samples)]))
    common = min(len(samples) - lag, len(reference))
    return samples[lag : lag + common], reference[:common]


def correlation(one: FloatArray, other: FloatArray) -> float:
    """Of two equally long sounds."""
    return float(np.corrcoef(one, other)[0, 1])


def low_passed(
    samples: FloatArray, cutoff_hz: float, rate: int = MODEL_RATE, wanted: int = MODEL_RATE
) -> FloatArray:
    """What is below a frequency, at another rate: by Fourier, with silence around it. Both rates
    are multiples of 10 Hz, the lengths of 0.1 s."""
    size = (len(samples) * 10 // rate + 2) * rate // 10
    spectrum = np.fft.rfft(samples, size)[: round(cutoff_hz * size / rate)]
    made = size * wanted // rate
    return (np.fft.irfft(spectrum, made) * (made / size)).astype("f4")
