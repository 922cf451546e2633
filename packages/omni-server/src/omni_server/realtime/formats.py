"""Sound as the protocol names it: 16-bit samples, or G.711's eight bits, in base64.

Knows bytes and samples. Resamples nothing that a model is to hear: it gets exactly what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from omni_core.errors import MediaError, PayloadTooLargeError, RequestError
from omni_core.media.dataurl import strict_base64
from omni_core.media.encode import pcm16
from omni_core.media.encode_stream import Filter, PcmWriter, Resampler, StreamEncoder, Tempo, Writer
from omni_core.types import FloatArray

FormatName: TypeAlias = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
Pcm: TypeAlias = npt.NDArray[np.int16]
PCM_RATE: Final = 24_000
PCM_RATES: Final = (24_000, 16_000)
"""In Hz, of "audio/pcm"; OpenAI has the first alone."""
G711_RATE: Final = 8_000
MOST_APPENDED_BYTES: Final = 15 * 1024 * 1024
_SAMPLE_BYTES: Final = 2
_BIAS: Final = 132
_CLIP: Final = 32_635
"""Of u-law, in 16-bit samples."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A format and its rate in Hz."""

    name: FormatName
    rate: int

    @property
    def bytes_per_s(self) -> int:
        """Of sound in it."""
        return self.rate * (_SAMPLE_BYTES if self.name == "audio/pcm" else 1)

    @property
    def json(self) -> dict[str, str | int]:
        """As the protocol writes it."""
        if self.name == "audio/pcm":
            return {"type": self.name, "rate": self.rate}
        return {"type": self.name}


def base64_bytes(text: str) -> int:
    """How many bytes base64 text stands for."""
    return len(text) // 4 * 3 - text[-2:].count("=")


def decode_audio(text: str, param: str) -> bytes:
    """The bytes of base64 text; RequestError for what is none or too long."""
    if base64_bytes(text) > MOST_APPENDED_BYTES:
        raise PayloadTooLargeError(
            f"'{param}' holds more than {MOST_APPENDED_BYTES} bytes of sound; send it in pieces.",
            param=param,
        )
    try:
        return strict_base64(text)
    except MediaError as exc:
        raise RequestError(
            f"'{param}' is not valid base64; use the standard alphabet (A-Z a-z 0-9 + /) with "
            "padding and without line breaks.",
            param=param,
        ) from exc


class PcmDecoder:
    """Bytes of a format to samples, as they come: half a sample waits for its other half."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self.format = audio_format
        self._half = b""

    def push(self, data: bytes) -> Pcm:
        """The samples that are whole now."""
        if self.format.name != "audio/pcm":
            table = U_LAW if self.format.name == "audio/pcmu" else A_LAW
            return table[np.frombuffer(data, np.uint8)]
        data = self._half + data
        whole = len(data) - len(data) % _SAMPLE_BYTES
        self._half = data[whole:]
        return np.frombuffer(data[:whole], "<i2").astype(np.int16, copy=False)

    def clear(self) -> None:
        """Forget what waits."""
        self._half = b""


def to_float(samples: Pcm) -> FloatArray:
    """Full scale 1."""
    return samples.astype(np.float32) / np.float32(32_768)


def encoder(audio_format: AudioFormat, model_rate: int, speed: float) -> StreamEncoder:
    """From a model's samples to bytes of a format, while they are made."""
    filters: list[Filter] = [] if speed == 1.0 else [Tempo(model_rate, speed)]
    if model_rate != audio_format.rate:
        filters.append(Resampler(model_rate, audio_format.rate))
    writer: Writer = PcmWriter(b"")
    if audio_format.name != "audio/pcm":
        writer = _G711Writer(audio_format.name == "audio/pcmu")
    return StreamEncoder(writer, filters)


@dataclass(frozen=True, slots=True)
class _G711Writer:
    is_u_law: bool

    def push(self, samples: FloatArray) -> bytes:
        pcm = np.frombuffer(pcm16(samples), "<i2").astype(np.int32)
        return (_to_u_law(pcm) if self.is_u_law else _to_a_law(pcm)).tobytes()

    def flush(self) -> bytes:
        return b""


def _to_u_law(pcm: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """ITU-T G.711, table 2: sign, 3 bits of exponent, 4 of mantissa, all inverted."""
    sign = np.where(pcm < 0, 0x80, 0)
    magnitude = np.minimum(np.abs(pcm), _CLIP) + _BIAS
    exponent = np.log2(magnitude).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 0x0F
    code: npt.NDArray[np.int32] = ~(sign | (exponent << 4) | mantissa)
    return code.astype(np.uint8)


def _to_a_law(pcm: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """ITU-T G.711, table 1: of 13 bits, the even ones inverted."""
    sign = np.where(pcm < 0, 0, 0x80)
    magnitude = np.where(pcm < 0, ~pcm, pcm) >> 3
    exponent = np.maximum(np.log2(np.maximum(magnitude, 1)).astype(np.int32) - 4, 0)
    mantissa = (magnitude >> np.maximum(exponent, 1)) & 0x0F
    code: npt.NDArray[np.int32] = (sign | (exponent << 4) | mantissa) ^ 0x55
    return code.astype(np.uint8)


def _u_law_table() -> Pcm:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = (((code & 0x0F) << 3) + _BIAS << ((code >> 4) & 7)) - _BIAS
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_law_table() -> Pcm:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent = (code >> 4) & 7
    magnitude = ((code & 0x0F) << 4) + np.where(exponent > 0, 0x108, 8)
    magnitude <<= np.maximum(exponent - 1, 0)
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


U_LAW: Final = _u_law_table()
A_LAW: Final = _a_law_table()
"""The sample that each code stands for."""
