"""Sound files of many kinds, each written here by a real encoder."""

import struct
from io import BytesIO
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
from PIL import Image

from omni_core.errors import MediaError, RequestCancelledError
from omni_core.media import MediaLimits, encode_audio, load_audio, wav_bytes
from omni_core.types import FloatArray

LIMITS = MediaLimits()


def tone(seconds: float = 1.0, rate: int = 16_000, hz: float = 440.0) -> FloatArray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def written(samples: npt.NDArray[Any], rate: int, fmt: str, subtype: str) -> bytes:
    buffer = BytesIO()
    soundfile.write(buffer, samples, rate, format=fmt, subtype=subtype)
    return buffer.getvalue()


def muxed(samples: FloatArray, rate: int, fmt: str, codec: str, **options: str) -> bytes:
    """Encode through FFmpeg; `samples` is (n,) or (n, 2)."""
    planes = np.atleast_2d(samples.T).astype("f4")
    layout = "mono" if len(planes) == 1 else "stereo"
    buffer = BytesIO()
    with av.open(buffer, "w", format=fmt, options=options) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        for start in range(0, planes.shape[1], 960):
            block = np.ascontiguousarray(planes[:, start : start + 960])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout=layout)
            frame.sample_rate = rate
            frame.pts = start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def loudest_hz(samples: FloatArray, rate: int = 16_000) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


def test_sixteen_bit_wav_at_the_target_rate_is_exact() -> None:
    values = np.random.default_rng(0).integers(-32768, 32768, 100_000).astype(np.int16)
    samples = load_audio(wav_bytes(values, 16_000), LIMITS)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, values / np.float32(32768))


def test_stereo_is_the_mean_of_both_channels() -> None:
    left, right = tone(hz=440), tone(hz=1_000)
    file = written(np.stack([left, right], 1), 16_000, "WAV", "FLOAT")
    np.testing.assert_allclose(load_audio(file, LIMITS), (left + right) / 2, atol=1e-7)
    six = written(np.stack([left] + [right] * 5, 1), 16_000, "WAV", "FLOAT")
    np.testing.assert_allclose(load_audio(six, LIMITS), (left + 5 * right) / 6, atol=1e-6)


def test_resampling_is_soxr_hq() -> None:
    """Block by block gives what soxr gives for the whole signal at once."""
    source = np.random.default_rng(1).uniform(-0.5, 0.5, 200_000).astype("f4")
    for rate in (8_000, 22_050, 44_100, 48_000):
        samples = load_audio(written(source, rate, "WAV", "FLOAT"), LIMITS)
        np.testing.assert_array_equal(samples, soxr.resample(source, rate, 16_000, "HQ"))


@pytest.mark.parametrize(
    ("subtype", "step"),
    [("PCM_U8", 1 / 128), ("PCM_24", 2**-23), ("PCM_32", 2**-23), ("FLOAT", 0), ("DOUBLE", 0),
     ("ULAW", 0.02), ("ALAW", 0.02), ("IMA_ADPCM", 0.05)],
)  # fmt: skip
def test_wav_sample_formats(subtype: str, step: float) -> None:
    samples = load_audio(written(tone(), 16_000, "WAV", subtype), LIMITS)
    np.testing.assert_allclose(samples[100:16_000], tone()[100:], atol=step)


def test_wav_containers() -> None:
    for fmt in ("WAVEX", "RF64", "W64", "AIFF", "CAF", "AU"):
        samples = load_audio(written(tone(), 16_000, fmt, "PCM_24"), LIMITS)
        np.testing.assert_allclose(samples, tone(), atol=2**-22)


def test_wav_with_extra_chunks_and_without_a_size() -> None:
    plain = wav_bytes(tone(), 16_000)
    expected = load_audio(plain, LIMITS)
    listed = plain[:36] + b"LIST" + struct.pack("<I", 4) + b"INFO" + plain[36:]
    unsized = [
        plain[:4] + riff + plain[8:40] + data + plain[44:]
        for riff, data in ((b"\xff" * 4, b"\xff" * 4), (b"\0" * 4, b"\0" * 4))
    ]
    for file in (listed, *unsized):
        np.testing.assert_array_equal(load_audio(file, LIMITS), expected)


@pytest.mark.parametrize(
    ("fmt", "subtype", "padding"),
    [
        ("FLAC", "PCM_16", 0),
        ("OGG", "VORBIS", 0),
        ("OGG", "OPUS", 0),
        ("MP3", "MPEG_LAYER_III", 3_456),
    ],
)
def test_files_of_libsndfile(fmt: str, subtype: str, padding: int) -> None:
    samples = load_audio(written(tone(), 16_000, fmt, subtype), LIMITS)
    assert 0 <= len(samples) - 16_000 <= padding
    assert loudest_hz(samples) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("rate", [16_000, 48_000])
@pytest.mark.parametrize(
    ("fmt", "codec", "options"),
    [
        ("mp4", "aac", {}),
        ("mp4", "aac", {"movflags": "frag_keyframe+empty_moov"}),
        ("ipod", "aac", {}),
        ("mov", "pcm_s16le", {}),
        ("adts", "aac", {}),
        ("webm", "libopus", {}),
        ("matroska", "flac", {}),
        ("mp3", "libmp3lame", {}),
        ("ogg", "libopus", {}),
        ("mpegts", "aac", {}),
    ],
)
def test_files_of_ffmpeg(fmt: str, codec: str, options: dict[str, str], rate: int) -> None:
    samples = load_audio(muxed(tone(1.0, rate), rate, fmt, codec, **options), LIMITS)
    # AAC without an edit list keeps its priming and fills its last frame.
    assert 16_000 - 2 <= len(samples) <= 16_000 + 3 * 1_024
    assert loudest_hz(samples) == pytest.approx(440, abs=2)
    assert samples[4_000:12_000].std() == pytest.approx(0.5 / 2**0.5, rel=0.08)


@pytest.mark.parametrize("subtype", ["OPUS", "VORBIS"])
@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_chained_ogg(subtype: str, rate: int) -> None:
    """One file after another is one recording; the pre-skip of each is no part of it."""
    links = [written(tone(1.0, rate, hz), rate, "OGG", subtype) for hz in (440, 880)]
    samples = load_audio(b"".join(links), LIMITS)
    assert len(samples) == pytest.approx(32_000, abs=2 if subtype == "OPUS" else 512)
    assert loudest_hz(samples[2_000:14_000]) == pytest.approx(440, abs=2)
    assert loudest_hz(samples[18_000:30_000]) == pytest.approx(880, abs=2)


def test_only_the_right_channel_speaks() -> None:
    stereo = np.stack([np.zeros(48_000, "f4"), tone(1.0, 48_000)], 1)
    samples = load_audio(muxed(stereo, 48_000, "ipod", "aac"), LIMITS)
    assert samples[4_000:12_000].std() == pytest.approx(0.25 / 2**0.5, rel=0.03)


def test_lossless_in_mkv_is_exact() -> None:
    values = np.random.default_rng(2).integers(-32768, 32768, 9_600).astype(np.int16)
    file = muxed(values.astype("f4") / 32768, 16_000, "matroska", "pcm_s16le")
    np.testing.assert_array_equal(load_audio(file, LIMITS), values / np.float32(32768))


def test_flac_without_a_length_in_its_header() -> None:
    file = bytearray(written(tone(), 16_000, "FLAC", "PCM_16"))
    file[21] &= 0xF0  # STREAMINFO: the 36-bit count of samples, 0 is unknown
    file[22:26] = bytes(4)
    expected = load_audio(written(tone(), 16_000, "FLAC", "PCM_16"), LIMITS)
    np.testing.assert_array_equal(load_audio(bytes(file), LIMITS), expected)
    with pytest.raises(MediaError, match=r"limit of 0\.5 s"):
        load_audio(bytes(file), MediaLimits(max_audio_seconds=0.5))


@pytest.mark.parametrize("fmt", ["wav", "flac", "mp3", "opus", "aac"])
def test_duration_limit(fmt: str) -> None:
    data = encode_audio(tone(2.0), 16_000, fmt)
    assert len(load_audio(data, MediaLimits(max_audio_seconds=2.5))) >= 32_000
    with pytest.raises(MediaError, match=r"longer than the limit of 1\.5 s"):
        load_audio(data, MediaLimits(max_audio_seconds=1.5))


def test_a_claimed_length_is_refused_before_decoding() -> None:
    file = bytearray(written(tone(0.1), 16_000, "FLAC", "PCM_16"))
    file[21] |= 0x0F
    file[22:26] = b"\xff" * 4  # 2**36 - 1 samples
    with pytest.raises(MediaError, match="longer than the limit"):
        load_audio(bytes(file), LIMITS)


@pytest.mark.parametrize("fmt", ["WAV", "AIFF"])
def test_rates_that_only_cost_time_are_refused(fmt: str) -> None:
    """The first by libsndfile, the second by FFmpeg."""
    assert load_audio(written(tone(0.1, 192_000), 192_000, fmt, "PCM_16"), LIMITS).size == 1_600
    with pytest.raises(MediaError, match="192001 samples a second, over the limit of 192000"):
        load_audio(written(tone(0.1), 192_001, fmt, "PCM_16"), LIMITS)


@pytest.mark.parametrize("fmt", ["WAV", "AIFF"])
def test_decoding_has_an_end(fmt: str) -> None:
    file = written(tone(0.1), 16_000, fmt, "PCM_16")
    with pytest.raises(MediaError, match="Decoding the audio took longer than the 0 s"):
        load_audio(file, MediaLimits(decode_timeout_s=0))


@pytest.mark.parametrize("fmt", ["WAV", "AIFF"])
def test_decoding_stops_when_nobody_waits(fmt: str) -> None:
    asked = iter([False, True])
    with pytest.raises(RequestCancelledError):
        load_audio(written(tone(20.0), 16_000, fmt, "PCM_16"), LIMITS, stop=lambda: next(asked))
    assert next(asked, None) is None


@pytest.mark.parametrize("n", [1, 320])
def test_very_short_clips(n: int) -> None:
    assert load_audio(wav_bytes(tone()[:n], 16_000), LIMITS).shape == (n,)


def test_nothing_to_hear() -> None:
    with pytest.raises(MediaError, match="no samples"):
        load_audio(wav_bytes(np.zeros(0, np.float32), 16_000), LIMITS)
    np.testing.assert_array_equal(
        load_audio(wav_bytes(np.zeros(100, np.float32), 16_000), LIMITS), np.zeros(100)
    )


def png() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello world, this is text",
        bytes(5_000),
        np.random.default_rng(3).bytes(5_000),
        b"ID3" + np.random.default_rng(4).bytes(5_000),
        b"RIFF\x24\0\0\0WAVE",
        b"OggS" + bytes(100),
        png(),
    ],
)
def test_what_is_no_audio(data: bytes) -> None:
    with pytest.raises(MediaError) as caught:
        load_audio(data, LIMITS)
    assert caught.value.status == 400


def test_a_truncated_mp4_is_refused() -> None:
    file = muxed(tone(), 16_000, "mp4", "aac")  # its index comes last
    with pytest.raises(MediaError, match="damaged"):
        load_audio(file[: len(file) // 2], LIMITS)


def test_metadata_in_another_encoding_does_no_harm() -> None:
    plain = wav_bytes(tone(), 16_000)
    info = b"INFOINAM" + struct.pack("<I", 4) + b"\xff\xfe\xe4\0"
    named = plain[:36] + b"LIST" + struct.pack("<I", len(info)) + info + plain[36:]
    odd_codec = named[:20] + struct.pack("<H", 0x1234) + named[22:]
    np.testing.assert_array_equal(load_audio(named, LIMITS), load_audio(plain, LIMITS))
    with pytest.raises(MediaError, match=r"cannot be decoded|no samples"):
        load_audio(odd_codec, LIMITS)


def test_more_channels_than_a_frame_has_planes() -> None:
    """33 channels once made PyAV read beyond its table of planes."""
    samples = np.random.default_rng(7).integers(-32_768, 32_768, (50, 33), np.int16)
    header = struct.pack(">4s5I", b".snd", 24, samples.nbytes, 3, 16_000, 33)
    decoded = load_audio(header + samples.astype(">i2").tobytes(), LIMITS)
    np.testing.assert_allclose(decoded, samples.mean(axis=1) / 32_768, atol=1e-6)


def test_tracks_that_appear_midway_are_refused_or_skipped() -> None:
    """FLV names its tracks as they come; PyAV 18 trips over those it has not listed, 17 skips
    them."""
    file = bytearray(muxed(tone(), 44_100, "flv", "libmp3lame"))
    tags = [13]
    while (end := tags[-1] + 15 + int.from_bytes(file[tags[-1] + 1 : tags[-1] + 4])) < len(file):
        tags.append(end)
    file[tags[3] + 11] = 0  # another sound codec
    file[tags[6]] = 9  # a picture
    samples, refusal = tone(), "damaged"
    try:
        samples = load_audio(bytes(file), LIMITS)
    except MediaError as error:
        refusal = error.message
    assert "damaged" in refusal
    assert 0 < samples.size <= tone().size


def test_flipped_bytes_never_escape_as_other_errors() -> None:
    """Every decoder either copes with damage or raises MediaError."""
    rng = np.random.default_rng(6)
    outcomes = {True: 0, False: 0}
    for fmt in ("wav", "flac", "mp3", "opus", "aac"):
        data = encode_audio(tone(0.2), 16_000, fmt)
        for _ in range(40):
            damaged = bytearray(data)
            for position in rng.integers(0, min(len(data), 200), 3):
                damaged[position] = rng.integers(0, 256)
            try:
                load_audio(bytes(damaged), LIMITS)
            except MediaError:
                outcomes[False] += 1
            else:
                outcomes[True] += 1
    assert min(outcomes.values()) > 20
