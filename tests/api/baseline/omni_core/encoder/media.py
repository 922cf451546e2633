from __future__ import annotations
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, assert_never
from PIL import Image

@dataclass(frozen=True, slots=True)
class Encoded:
    kind: MediaKind
    data: bytes
    param: str
    key: bytes

@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    grid: list[int] = field(default_factory=list)
    frames: int = 0
    fps: float = 0.0
    samples: int = 0

@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    encoded: Encoded
    measures: Measures
    image: Image.Image | None = None
    video: VideoClip | None = None
    sound: FloatArray | None = None

    @property
    def decoded(self) -> bool:
        ...

class MediaRules(Protocol):

    @property
    def sample_rate(self) -> int:
        ...

    @property
    def sampling(self) -> tuple[float, int]:
        ...

    @property
    def choose_frames(self) -> FrameChoice:
        ...

    def image_grid(self, image: Image.Image, options: MediaOptions) -> list[int]:
        ...

    def video_grid(self, shape: tuple[int, ...], options: MediaOptions) -> list[int]:
        ...

    def check_sound(self, samples: FloatArray) -> None:
        ...

class MediaLoader:

    def __init__(self, rules: MediaRules, limits: MediaLimits, *, remembered: int) -> None:
        ...

    def fetch(self, messages: Sequence[Message], options: MediaOptions, stop: Stop=never) -> list[Encoded]:
        ...

    def recall(self, items: Sequence[Encoded]) -> list[Measures | None]:
        ...

    def decode(self, items: Sequence[Encoded], recalled: Sequence[Measures | None], options: MediaOptions, stop: Stop=never) -> list[Item]:
        ...

    def remember(self, items: Sequence[Item]) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...

    def sampling(self, options: MediaOptions) -> tuple[float, int]:
        ...

def require_wanted(stop: Stop) -> None:
    ...

@contextmanager
def blaming(param: str) -> Iterator[None]:
    ...
