"""Audio out: headers byte by byte, and each format read back."""

import struct
from io import BytesIO

import numpy as np
import pytest
import soundfile

from omni_core.errors import RequestError
from omni_core.media import (
    AUDIO_MEDIA_TYPES,
    MediaLimits,
    encode_audio,
    load_audio,
    pcm16,
    wav_bytes,
    wav_header,
)
from omni_core.types import FloatArray

RATE = 24_000


def tone(seconds: float, rate: int = RATE, hz: float = 440.0) -> FloatArray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def loudest_hz(samples: FloatArray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


def test_pcm16_rounds_and_clips() -> None:
    samples = np.array([0, 1.4, 1.6, -1.6, 32767, 32768, -32768, -40000, 60000], "f4") / 32768
    assert struct.unpack("<9h", pcm16(samples)) == (
        0, 1, 2, -2, 32767, 32767, -32768, -32768, 32767,
    )  # fmt: skip


def test_every_sixteen_bit_value_survives_the_round_trip() -> None:
    values = np.arange(-32768, 32768, dtype=np.int16)
    file = wav_bytes(values, 16_000)
    samples = load_audio(file, MediaLimits())
    np.testing.assert_array_equal(samples, values.astype("f4") / 32768)
    assert wav_bytes(samples, 16_000) == file
    assert encode_audio(samples, 16_000, "pcm16") == values.tobytes()


def test_wav_header_fields() -> None:
    assert wav_header(RATE, 100) == (
        b"RIFF" + struct.pack("<I", 236) + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
        + b"data" + struct.pack("<I", 200)
    )  # fmt: skip
    file = wav_bytes(tone(0.1), RATE)
    assert file[:44] == wav_header(RATE, 2_400)
    assert len(file) == 44 + 4_800


def test_a_wav_stream_of_unknown_length_reads_to_its_end() -> None:
    header = wav_header(RATE, None)
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    samples, rate = soundfile.read(BytesIO(header + pcm16(tone(0.1))), dtype="float32")
    assert rate == RATE
    np.testing.assert_allclose(samples, tone(0.1), atol=1 / 65_535)


@pytest.mark.parametrize(
    ("fmt", "magic"),
    [
        ("wav", (b"RIFF",)),
        ("flac", (b"fLaC",)),
        ("mp3", (b"\xff\xf3", b"\xff\xfb", b"ID3")),
        ("opus", (b"OggS",)),
        ("aac", (b"\xff\xf1",)),
    ],
)
@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
def test_formats_read_back(fmt: str, magic: tuple[bytes, ...], rate: int) -> None:
    speech = tone(1.0, rate)
    data = encode_audio(speech, rate, fmt)
    assert data.startswith(magic)
    samples = load_audio(data, MediaLimits(), sample_rate=rate)
    # Encoders pad to whole frames; AAC in ADTS cannot say how much.
    padding = {"aac": 3 * 2_048, "mp3": 3 * 1_152}.get(fmt, 1)
    assert 0 <= len(samples) - len(speech) <= padding
    assert loudest_hz(samples[: len(speech)], rate) == pytest.approx(440, abs=2)
    assert np.abs(samples[rate // 4 : rate // 2]).max() == pytest.approx(0.5, abs=0.05)
    if fmt in ("wav", "flac"):
        np.testing.assert_allclose(samples, speech, atol=1 / 65_535)


def test_opus_takes_a_rate_it_does_not_know() -> None:
    with soundfile.SoundFile(BytesIO(encode_audio(tone(1.0, 44_100), 44_100, "opus"))) as file:
        assert (file.format, file.subtype, file.samplerate) == ("OGG", "OPUS", 48_000)
        assert file.frames == 48_000


@pytest.mark.parametrize("fmt", sorted(AUDIO_MEDIA_TYPES))
def test_long_and_empty_replies(fmt: str) -> None:
    long = tone(20.0)
    data = encode_audio(long, RATE, fmt)
    if fmt != "pcm16":
        samples = load_audio(data, MediaLimits(), sample_rate=RATE)
        assert len(samples) == pytest.approx(len(long), abs=6_144)
    assert isinstance(encode_audio(np.zeros(0, np.float32), RATE, fmt), bytes)


@pytest.mark.parametrize("fmt", ["wav", "flac", "mp3", "opus", "aac"])
def test_samples_beyond_full_scale_are_clipped_not_wrapped(fmt: str) -> None:
    square = np.sign(tone(0.5, hz=100.0)) * np.float32(4.0)
    samples = load_audio(encode_audio(square, RATE, fmt), MediaLimits(), sample_rate=RATE)
    centre = samples[RATE // 4 : RATE // 4 + 2_400]
    assert np.median(np.abs(centre)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("fmt", ["WAV", "ogg", "", "pcm24"])
def test_unknown_formats_name_the_field(fmt: str) -> None:
    with pytest.raises(RequestError, match="use one of wav, pcm16, flac, mp3, opus, aac") as caught:
        encode_audio(tone(0.1), RATE, fmt)
    assert caught.value.param == "audio.format"
    assert caught.value.status == 400
