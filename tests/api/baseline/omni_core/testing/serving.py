from __future__ import annotations
import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
import numpy as np
PATIENCE_S: Final = 120.0

@dataclass(frozen=True, slots=True)
class Reply:
    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        ...

    @property
    def samples(self) -> FloatArray:
        ...

    @property
    def finished(self) -> Finished:
        ...

class Served:

    def __init__(self, pipeline: Pipeline, runner: asyncio.Runner) -> None:
        ...

    def ask(self, *requests: Request) -> list[Reply]:
        ...

    def leave(self, request: Request) -> list[Event]:
        ...

    def stats(self) -> dict[str, dict[str, float]]:
        ...

    def wait_until_idle(self) -> None:
        ...

@contextlib.contextmanager
def serving(checkpoint: str, plugins: Plugins, on_progress: Callable[[str, str], None] | None=None) -> Iterator[Served]:
    ...
