from __future__ import annotations
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, assert_never
import numpy as np

class StreamingVocoder(Protocol):
    sample_rate: int
    max_replies: int | None

    def open(self, params: RequestParams, payload: Payload) -> Any:
        ...

    def push(self, states: list[Any], codes: list[IntArray]) -> list[FloatArray]:
        ...

    def flush(self, state: Any) -> FloatArray:
        ...

    def close(self, state: Any) -> None:
        ...

class StreamingScheduler:

    def __init__(self, vocoder: StreamingVocoder, *, cadence: Cadence | None=None, push_frames: int | None=None, clock: Callable[[], float]=time.monotonic, more_stats: Callable[[], Mapping[str, float]]=dict) -> None:
        ...

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...
