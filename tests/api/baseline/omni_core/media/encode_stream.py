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
STREAM_MEDIA_TYPES = {'mp3': 'audio/mpeg', 'opus': 'audio/ogg', 'aac': 'audio/aac', 'flac': 'audio/flac', 'wav': 'audio/wav', 'pcm': 'audio/pcm'}
PCM_RATE = 24000

class Filter(Protocol):

    def push(self, samples: FloatArray) -> FloatArray:
        ...

    def flush(self) -> FloatArray:
        ...

class Writer(Protocol):

    def push(self, samples: FloatArray) -> bytes:
        ...

    def flush(self) -> bytes:
        ...

@dataclass(slots=True)
class StreamEncoder:
    writer: Writer
    filters: Sequence[Filter] = ()

    def push(self, samples: FloatArray) -> bytes:
        ...

    def flush(self) -> bytes:
        ...

@dataclass(frozen=True, slots=True)
class StreamFormats:
    codecs: Mapping[str, AudioCodecSpec] = field(default_factory=dict)

    @property
    def media_types(self) -> dict[str, str]:
        ...

    def encoder(self, fmt: str, sample_rate: int, *, speed: float=1.0) -> StreamEncoder:
        ...

class Resampler:

    def __init__(self, from_rate: int, to_rate: int, *, quality: str='HQ') -> None:
        ...

    def push(self, samples: FloatArray) -> FloatArray:
        ...

    def flush(self) -> FloatArray:
        ...

class Tempo:

    def __init__(self, sample_rate: int, speed: float) -> None:
        ...

    def push(self, samples: FloatArray) -> FloatArray:
        ...

    def flush(self) -> FloatArray:
        ...

@dataclass(slots=True)
class PcmWriter:
    header: bytes

    def push(self, samples: FloatArray) -> bytes:
        ...

    def flush(self) -> bytes:
        ...

@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    container: str
    codec: str
    sample_format: str
    rates: tuple[int, ...] = ()
    bit_rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

class ContainerWriter:

    def __init__(self, kind: Container, rate: int) -> None:
        ...

    def push(self, samples: FloatArray) -> bytes:
        ...

    def flush(self) -> bytes:
        ...
