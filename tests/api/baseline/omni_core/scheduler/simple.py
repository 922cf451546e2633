from __future__ import annotations
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias, assert_never
import msgspec
Compute: TypeAlias = Callable[[list[Work]], Sequence[Payload | OmniError]]

class SimpleScheduler:

    def __init__(self, compute: Compute, *, max_batch: int=1, max_wait_ms: float=0.0, max_concurrency: int=1, cost: Callable[[Work], float]=lambda work: 0.0, max_cost: float=math.inf, more_stats: Callable[[], Mapping[str, float]]=dict) -> None:
        ...

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...
