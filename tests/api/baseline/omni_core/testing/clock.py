from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass, field

@dataclass(slots=True, eq=False)
class VirtualTimer:
    due_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        ...

@dataclass(slots=True)
class VirtualClock:
    now_s: float = 0.0
    timers: list[VirtualTimer] = field(default_factory=list)

    def __call__(self) -> float:
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> VirtualTimer:
        ...

    def pass_time(self, seconds: float) -> None:
        ...
