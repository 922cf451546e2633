"""Sound: bytes in, float32 mono at the wanted rate out.

Knows decoders and resampling. Trusts no label: the bytes decide who decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import av
import numpy as np
import soundfile
import soxr

from omni_core.errors import MediaError
from omni_core.media.container import open_container
from omni_core.media.limits import MediaLimits
from omni_core.media.patience import Patience, Stop, never
from omni_core.types import FloatArray

MAX_SOURCE_RATE_HZ = 192_000
"""No recorder is faster, and decoding costs as much as the header says: up to 655,350 Hz."""
_BLOCK_FRAMES = 65_536
_UNKNOWN_FRAMES = 1 << 62
"""libsndfile reports the largest integer for a stream whose header gives no length."""


def load_audio(
    data: bytes, limits: MediaLimits, *, sample_rate: int = 16_000, stop: Stop = never
) -> FloatArray:
    """Decode to float32 (n,), full scale 1: the mean of all channels at `sample_rate` Hz.

    Integer samples are divided by their full scale, so 16-bit files at the target rate come out
    as exactly x / 32768; other rates go through soxr's HQ resampler. Raises MediaError for what
    cannot be decoded in `limits.decode_timeout_s`, holds no samples, lasts over
    `limits.max_audio_seconds` or has over `MAX_SOURCE_RATE_HZ`, and RequestCancelledError once
    `stop` says so.
    """
    patience = Patience(limits.decode_timeout_s, "audio", stop)
    samples = decode_audio(data, limits.max_audio_seconds, sample_rate, patience)
    if samples is None:
        raise MediaError("The file has no sound track.")
    if not samples.size:
        raise MediaError("The audio holds no samples.")
    return samples


def decode_audio(
    data: bytes, max_seconds: float, sample_rate: int, patience: Patience
) -> FloatArray | None:
    """As `load_audio`, but None for a container without a sound track, and maybe no samples."""
    if _is_for_libsndfile(data):
        try:
            samples = _decode_soundfile(data, max_seconds, sample_rate, patience)
        except soundfile.LibsndfileError:
            samples = np.zeros(0, np.float32)  # a codec it lacks: FFmpeg may know it
        if samples.size:
            return samples
    return _decode_av(data, max_seconds, sample_rate, patience)


def _is_for_libsndfile(data: bytes) -> bool:
    head = data[:12]
    return (
        head.startswith((b"fLaC", b"ID3"))
        or (head.startswith(b"OggS") and _is_one_vorbis_stream(data))
        or (head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE")
        or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2)  # MPEG layer III sync
    )


def _is_one_vorbis_stream(ogg: bytes) -> bool:
    """Of chained files libsndfile reads the first only, and of Opus it keeps the pre-skip."""
    return b"OpusHead" not in ogg[:64] and ogg.count(b"\x01vorbis") == 1


class _MonoCollector:
    """Mixes, resamples and counts blocks as they are decoded, so only the result is kept."""

    def __init__(
        self, source_rate: int, sample_rate: int, max_seconds: float, patience: Patience
    ) -> None:
        if source_rate <= 0:
            raise MediaError("The audio is damaged: its sample rate is 0.")
        if source_rate > MAX_SOURCE_RATE_HZ:
            raise MediaError(
                f"The audio has {source_rate} samples a second, over the limit of "
                f"{MAX_SOURCE_RATE_HZ}; resample it."
            )
        self._patience = patience
        self._source_rate = source_rate
        self._max_seconds = max_seconds
        self._frames = 0
        self._blocks: list[FloatArray] = []
        self._resampler = (
            None
            if source_rate == sample_rate
            else soxr.ResampleStream(source_rate, sample_rate, 1, dtype="float32", quality="HQ")
        )

    def push(self, block: FloatArray) -> None:
        """Add frames (n, channels), while there is patience for them."""
        self._patience.check()
        self._frames += len(block)
        _check_duration(self._frames / self._source_rate, self._max_seconds)
        mono = block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
        self._append(mono, last=False)

    def finish(self) -> FloatArray:
        """Everything pushed, (n,)."""
        if self._resampler is not None:
            self._append(np.zeros(0, np.float32), last=True)
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.float32)

    def _append(self, mono: FloatArray, *, last: bool) -> None:
        if self._resampler is not None:
            mono = self._resampler.resample_chunk(np.ascontiguousarray(mono), last=last)
        self._blocks.append(mono)


def _check_duration(seconds: float, max_seconds: float) -> None:
    if seconds > max_seconds:
        raise MediaError(f"The audio lasts longer than the limit of {max_seconds:g} s; cut it.")


def _decode_soundfile(
    data: bytes, max_seconds: float, sample_rate: int, patience: Patience
) -> FloatArray:
    with soundfile.SoundFile(BytesIO(data)) as file:
        collector = _MonoCollector(file.samplerate, sample_rate, max_seconds, patience)
        if file.frames < _UNKNOWN_FRAMES:
            _check_duration(file.frames / file.samplerate, max_seconds)
        while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
            collector.push(block)
        return collector.finish()


def _decode_av(
    data: bytes, max_seconds: float, sample_rate: int, patience: Patience
) -> FloatArray | None:
    with open_container(data, "audio") as container:
        if not container.streams.audio:
            return None
        stream = container.streams.audio[0]
        if stream.codec_context is None:
            raise MediaError("The sound track uses a codec that cannot be decoded here.")
        if stream.duration is not None:
            _check_duration(float(stream.duration * stream.time_base), max_seconds)
        collector: _MonoCollector | None = None
        for frame in _float_frames(container, stream):
            # The decoder knows the rate; headers of HE-AAC give half of it.
            if collector is None:
                collector = _MonoCollector(frame.sample_rate, sample_rate, max_seconds, patience)
            collector.push(frame.to_ndarray().reshape(frame.samples, -1))
        return np.zeros(0, np.float32) if collector is None else collector.finish()


def _float_frames(
    container: av.container.InputContainer, stream: av.audio.stream.AudioStream
) -> Iterator[av.AudioFrame]:
    """Decoded frames as interleaved float32, whatever the codec's own sample format.

    Not planar: PyAV reads beyond its table of planes where a stream has over 8 channels.
    """
    to_float = av.AudioResampler(format="flt")
    try:
        for frame in container.decode(stream):
            yield from to_float.resample(frame)
    except ValueError as exc:  # PyAV: "Frame does not match AudioResampler setup."
        raise MediaError("The sound track is damaged or changes its format midway.") from exc
