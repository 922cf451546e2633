from __future__ import annotations
from collections.abc import Callable, Sequence
from dataclasses import dataclass
Decode = Callable[[list[int]], str]
INCOMPLETE = '�'

@dataclass(frozen=True, slots=True)
class StopState:
    safe: int
    stopped: bool

class StopMatcher:

    def __init__(self, stops: Sequence[str]) -> None:
        ...

    def push(self, text: str) -> StopState:
        ...

class IncrementalText:

    def __init__(self, decode: Decode) -> None:
        ...

    def push(self, token: int) -> str:
        ...

class StopTracker:

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        ...

    @property
    def holding(self) -> bool:
        ...

    def push(self, token: int) -> tuple[tuple[int, ...], bool]:
        ...

    def flush(self) -> tuple[int, ...]:
        ...
