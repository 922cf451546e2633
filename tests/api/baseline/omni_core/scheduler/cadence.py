from __future__ import annotations
from dataclasses import dataclass, field
from functools import cached_property

@dataclass(frozen=True, kw_only=True)
class Cadence:
    initial_frames: int = 1
    steady_frames: int = 8
    margin_s: float = 0.04

    def __post_init__(self) -> None:
        ...

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        ...

    def largest(self, frames: int) -> int:
        ...

    def after(self, frames: int) -> int:
        ...

@dataclass(slots=True)
class Pace:
    cadence: Cadence
    size: int = field(init=False)
    audio_until_s: float | None = None

    def __post_init__(self) -> None:
        ...

    @property
    def wake_s(self) -> float | None:
        ...

    def due(self, waiting: int, *, ended: bool, now_s: float) -> int:
        ...

    def decoded(self, frames: int, *, audio_s: float, now_s: float) -> bool:
        ...
