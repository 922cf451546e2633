"""Speech out while it is made: pieces of float32 samples to the bytes of one file.

Knows containers, codecs and filters that need no more than a moment of the past. Knows nothing of
who makes the samples or who reads the bytes. One `StreamEncoder` serves one reply, one thread at a
time, and keeps a codec frame or two. No header says how long the file is: nobody knows it yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import av
import numpy as np
import soxr
from av.filter import Graph

from omni_core.errors import RequestError
from omni_core.extensions import AudioCodecSpec
from omni_core.media.encode import AAC_BIT_RATE, MPEG_RATES, OPUS_RATES, pcm16, wav_header
from omni_core.types import FloatArray

STREAM_MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
"""Media type of each of our formats; "opus" is in Ogg, "aac" in ADTS frames."""
PCM_RATE = 24_000
"""What clients take raw samples for, whatever model they are of."""
MIN_SPEED, MAX_SPEED = 0.25, 4.0


class Filter(Protocol):
    """Samples to samples; the output may lag behind."""

    def push(self, samples: FloatArray) -> FloatArray:
        """More samples (n,) in, those that are final out."""

    def flush(self) -> FloatArray:
        """The rest."""


class Writer(Protocol):
    """Samples to bytes; the output may lag behind."""

    def push(self, samples: FloatArray) -> bytes:
        """More samples (n,) in, the bytes that are final out."""

    def flush(self) -> bytes:
        """The rest."""


@dataclass(slots=True)
class StreamEncoder:
    """Filters in a row, then a writer. The bytes of all calls, joined, are one file."""

    writer: Writer
    filters: Sequence[Filter] = ()

    def push(self, samples: FloatArray) -> bytes:
        """Encode more samples (n,), clipped to [-1, 1]."""
        for one in self.filters:
            samples = one.push(samples)
        return self.writer.push(np.clip(samples, -1.0, 1.0))

    def flush(self) -> bytes:
        """The end of the file; nothing may be pushed after it."""
        rest: FloatArray = np.zeros(0, np.float32)
        for one in self.filters:
            rest = np.concatenate([one.push(rest), one.flush()])
        return self.writer.push(np.clip(rest, -1.0, 1.0)) + self.writer.flush()


@dataclass(frozen=True, slots=True)
class StreamFormats:
    """The formats that speech can be had in: ours, and those of plugins."""

    codecs: Mapping[str, AudioCodecSpec] = field(default_factory=dict)
    """{name: description} of plugins."""

    @property
    def media_types(self) -> dict[str, str]:
        """{name: media type} of all of them."""
        theirs = {name: codec.media_type for name, codec in self.codecs.items()}
        return {**STREAM_MEDIA_TYPES, **theirs}

    def encoder(self, fmt: str, sample_rate: int, *, speed: float = 1.0) -> StreamEncoder:
        """An encoder of mono samples at `sample_rate`, in Hz, to one of `media_types`.

        Files have the samples' own rate; "pcm" always has `PCM_RATE`, and a rate that a codec does
        not know (44.1 kHz Opus, say) becomes the next it does. `speed`, from `MIN_SPEED` to
        `MAX_SPEED`, makes speech faster and keeps its pitch. Raises RequestError on
        "response_format" for another format.
        """
        if fmt not in self.media_types:
            raise RequestError(
                f"Audio format {fmt!r} is not supported; use one of {', '.join(self.media_types)}.",
                param="response_format",
            )
        rate = self._rate(fmt, sample_rate)
        filters: list[Filter] = [] if speed == 1.0 else [Tempo(sample_rate, speed)]
        if rate != sample_rate:
            filters.append(Resampler(sample_rate, rate))
        return StreamEncoder(self._writer(fmt, rate), filters)

    def _rate(self, fmt: str, sample_rate: int) -> int:
        if fmt == "pcm":
            return PCM_RATE
        kind = self.codecs.get(fmt) or _CONTAINERS.get(fmt)
        known = () if kind is None else kind.rates
        if not known or sample_rate in known:
            return sample_rate
        return next((rate for rate in known if rate > sample_rate), known[-1])

    def _writer(self, fmt: str, rate: int) -> Writer:
        if fmt in self.codecs:
            made: Writer = self.codecs[fmt].writer.resolve()(rate)
            return made
        if fmt in _CONTAINERS:
            return ContainerWriter(_CONTAINERS[fmt], rate)
        return PcmWriter(wav_header(rate, None) if fmt == "wav" else b"")


class Resampler:
    """To another rate."""

    def __init__(self, from_rate: int, to_rate: int, *, quality: str = "HQ") -> None:
        """`quality` is soxr's: a better filter looks further ahead, so its output lags more."""
        self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality=quality)

    def push(self, samples: FloatArray) -> FloatArray:
        """See `Filter`."""
        return self._chunk(samples, last=False)

    def flush(self) -> FloatArray:
        """See `Filter`."""
        return self._chunk(np.zeros(0, np.float32), last=True)

    def _chunk(self, samples: FloatArray, *, last: bool) -> FloatArray:
        made: FloatArray = self._stream.resample_chunk(
            np.ascontiguousarray(samples, np.float32), last=last
        )
        return made


class Tempo:
    """Faster or slower at the same pitch, by overlapping waveforms that are alike (WSOLA).

    FFmpeg's atempo does that well for factors from 0.5 to 2, so there are two in a row.
    """

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._rate = sample_rate
        self._taken = 0
        self._graph = Graph()
        steps = [
            self._graph.add_abuffer(
                format="flt",
                sample_rate=sample_rate,
                layout="mono",
                time_base=Fraction(1, sample_rate),
            )
        ]
        steps += [self._graph.add("atempo", repr(math.sqrt(speed))) for _ in range(2)]
        steps.append(self._graph.add("abuffersink"))
        self._graph.link_nodes(*steps).configure()

    def push(self, samples: FloatArray) -> FloatArray:
        """See `Filter`."""
        if len(samples):
            self._graph.push(_frame(samples, self._rate, self._taken, "flt"))
            self._taken += len(samples)
        return self._pull()

    def flush(self) -> FloatArray:
        """See `Filter`."""
        if not self._taken:
            return np.zeros(0, np.float32)
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> FloatArray:
        pieces: list[FloatArray] = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate(pieces)
            pieces.append(frame.to_ndarray().reshape(-1).astype(np.float32, copy=False))


@dataclass(slots=True)
class PcmWriter:
    """Signed 16-bit little-endian samples after a header."""

    header: bytes

    def push(self, samples: FloatArray) -> bytes:
        """See `Writer`."""
        header, self.header = self.header, b""
        return header + pcm16(samples)

    def flush(self) -> bytes:
        """See `Writer`; the header, if there were no samples."""
        return self.push(np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How FFmpeg names a format, and what makes it fit for a stream."""

    container: str
    codec: str
    sample_format: str
    rates: tuple[int, ...] = ()
    """In Hz, that the codec knows; empty for any."""
    bit_rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


# Bit rates are such that speech stays the waveform it was (correlation over 0.999).
_CONTAINERS = {
    # A Xing header would hold the length, which is not known when it leaves.
    "mp3": Container(
        container="mp3",
        codec="libmp3lame",
        sample_format="fltp",
        rates=MPEG_RATES,
        bit_rate=128_000,
        options={"write_xing": "0", "id3v2_version": "0"},
    ),
    # Ogg's pages are a second long unless told otherwise, in microseconds.
    "opus": Container(
        container="ogg",
        codec="libopus",
        sample_format="flt",
        rates=OPUS_RATES,
        bit_rate=128_000,
        options={"page_duration": "20000"},
    ),
    "aac": Container(
        container="adts",
        codec="aac",
        sample_format="fltp",
        rates=MPEG_RATES,
        bit_rate=AAC_BIT_RATE,
    ),
    "flac": Container(container="flac", codec="flac", sample_format="s16"),
}


class _Sink:
    """What FFmpeg writes to; it cannot seek."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._bytes)
        self._bytes.clear()
        return data


class ContainerWriter:
    """An encoder and a container of FFmpeg."""

    def __init__(self, kind: Container, rate: int) -> None:
        self._rate = rate
        self._taken = 0
        self._sink = _Sink()
        self._file = av.open(self._sink, "w", format=kind.container, options=dict(kind.options))
        self._track = self._file.add_stream(kind.codec, rate=rate, layout="mono")
        self._track.codec_context.format = kind.sample_format
        if kind.bit_rate is not None:
            self._track.codec_context.bit_rate = kind.bit_rate
        self._file.start_encoding()

    def push(self, samples: FloatArray) -> bytes:
        """See `Writer`."""
        if len(samples):
            frame = _frame(samples, self._rate, self._taken, "fltp")
            self._taken += len(samples)
            self._file.mux(self._track.encode(frame))
        return self._sink.take()

    def flush(self) -> bytes:
        """See `Writer`."""
        self._file.mux(self._track.encode(None))
        self._file.close()
        return self._sink.take()


def _frame(samples: FloatArray, rate: int, start: int, sample_format: str) -> av.AudioFrame:
    """Samples (n,) as a frame that begins at sample `start`."""
    block = np.ascontiguousarray(samples[None], np.float32)
    frame = av.AudioFrame.from_ndarray(block, format=sample_format, layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
    return frame
