from __future__ import annotations
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias
Stop: TypeAlias = Callable[[], bool]

def never() -> bool:
    ...

@dataclass(slots=True)
class Patience:
    seconds: float
    kind: str
    stop: Stop = never

    def __post_init__(self) -> None:
        ...

    def check(self) -> None:
        ...
