from __future__ import annotations
import threading
import time
from collections.abc import Callable
from typing import Any

class Faulty:

    def __init__(self, target: Any, method: str, *, after: int=0, times: int | None=None, error: Exception | None=None, delay_s: float=0.0) -> None:
        ...

    def __getattr__(self, name: str) -> Any:
        ...
