"""Streamed files: read back by an independent decoder, and equal to what was put in."""

from io import BytesIO

import av
import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_core.media.encode import pcm16, wav_header
from omni_core.media.encode_stream import STREAM_MEDIA_TYPES, StreamFormats
from omni_core.types import FloatArray

RATE = 24_000
FRAME_S = 0.08
"""A codec frame of the model: how much longer a file may be, beside the codec's own padding."""
PADDING_SAMPLES = {"mp3": 1_105 + 2 * 1_152, "aac": 2 * 1_024}
MAGIC = {
    "mp3": (b"\xff\xf3", b"\xff\xfb"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1",),
    "flac": (b"fLaC",),
    "wav": (b"RIFF\xff\xff\xff\xffWAVE",),
}
FILES = tuple(MAGIC)


def chirp(seconds: float, rate: int = RATE) -> FloatArray:
    """Rises from 200 Hz, so that no two moments are alike."""
    t = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * (200 + 150 * t) * t)).astype("f4")


def streamed(samples: FloatArray, fmt: str, rate: int, size: int, speed: float = 1.0) -> bytes:
    encoder = StreamFormats().encoder(fmt, rate, speed=speed)
    pieces = [encoder.push(samples[i : i + size]) for i in range(0, len(samples), size)]
    return b"".join([*pieces, encoder.flush()])


def decoded(data: bytes, rate: int = RATE) -> tuple[FloatArray, int]:
    """All samples at `rate`, by FFmpeg, and the rate of the file."""
    with av.open(BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        frames = [f for frame in [*file.decode(audio=0), None] for f in resampler.resample(frame)]
        own_rate = file.streams.audio[0].rate
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), own_rate


def likeness(heard: FloatArray, said: FloatArray) -> float:
    """Correlation with the part of `heard` that is most like it; codecs begin with silence."""
    size = len(heard) + len(said)
    products = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size))
    late = int(np.fft.irfft(products, size)[: size // 2].argmax())
    part = heard[late : late + len(said)]
    return float(np.corrcoef(part, said[: len(part)])[0, 1])


@pytest.mark.parametrize("fmt", FILES)
@pytest.mark.parametrize("rate", [24_000, 44_100])
def test_a_streamed_file_is_what_was_said(fmt: str, rate: int) -> None:
    said = chirp(1.0, rate)
    data = streamed(said, fmt, rate, size=1_365)
    assert data.startswith(MAGIC[fmt])
    heard, file_rate = decoded(data, rate)
    assert file_rate == (48_000 if fmt == "opus" else rate)
    assert 0 <= len(heard) / rate - 1.0 <= FRAME_S + PADDING_SAMPLES.get(fmt, 0) / rate
    assert likeness(heard, said) > (0.998 if fmt == "aac" else 0.999)


@pytest.mark.parametrize("fmt", FILES)
def test_the_cuts_between_pieces_are_not_heard(fmt: str) -> None:
    said = chirp(0.7)
    whole, _ = decoded(streamed(said, fmt, RATE, size=len(said)))
    for size in (1, 700, 1_920) if fmt == "wav" else (97, 1_920):
        pieces, _ = decoded(streamed(said, fmt, RATE, size=size))
        assert pieces.shape == whole.shape
        np.testing.assert_allclose(pieces, whole, atol=1e-3)


def test_wav_and_pcm_are_the_samples_themselves() -> None:
    said = chirp(0.3) * 3  # clipped, not wrapped
    assert streamed(said, "pcm", RATE, size=100) == pcm16(np.clip(said, -1, 1))
    wav = streamed(said, "wav", RATE, size=100)
    assert wav == wav_header(RATE, None) + pcm16(np.clip(said, -1, 1))


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100])
def test_pcm_has_24_khz_whatever_the_model(rate: int) -> None:
    data = streamed(chirp(1.0, rate), "pcm", rate, size=800)
    heard = np.frombuffer(data, "<i2").astype("f4") / 32_768
    assert len(heard) == RATE
    assert np.corrcoef(heard, chirp(1.0))[0, 1] > 0.999


@pytest.mark.parametrize("fmt", FILES)
def test_bytes_leave_while_speech_is_made(fmt: str) -> None:
    encoder = StreamFormats().encoder(fmt, RATE)
    said = chirp(1.0)
    sizes = [len(encoder.push(said[i : i + 1_920])) for i in range(0, len(said), 1_920)]
    late = 3 if fmt == "flac" else 2
    assert sum(sizes[:late]) > 0
    assert max(sizes[late:]) < sum(sizes) / 2
    assert len(encoder.flush()) < 12_000


@pytest.mark.parametrize("fmt", STREAM_MEDIA_TYPES)
def test_nothing_said_is_an_empty_file(fmt: str) -> None:
    encoder = StreamFormats().encoder(fmt, RATE, speed=2.0)
    data = encoder.push(np.zeros(0, np.float32)) + encoder.flush()
    assert data.startswith(MAGIC.get(fmt, (b"",))) or not data


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.5, 2.0, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float) -> None:
    t = np.arange(2 * RATE) / RATE
    said = (0.5 * np.sin(2 * np.pi * 440 * t)).astype("f4")
    data = streamed(said, "pcm", RATE, size=1_920, speed=speed)
    heard = np.frombuffer(data, "<i2").astype("f4") / 32_768
    assert len(heard) / len(said) == pytest.approx(1 / speed, rel=0.1)
    middle = heard[len(heard) // 4 : -len(heard) // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * RATE / len(middle) == pytest.approx(440, rel=0.03)


def test_unknown_formats_name_the_field() -> None:
    with pytest.raises(RequestError, match="use one of mp3, opus") as refused:
        StreamFormats().encoder("midi", RATE)
    assert refused.value.param == "response_format"
