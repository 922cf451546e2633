"""Harm on purpose: something that works for a while and then fails, or is slow.

Wraps any object, so that the real thing is what fails: a relay, a vocoder, an engine, a runner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class Faulty:
    """`target`, but for one method.

    ```python
    vocoder = Faulty(ToneVocoder(), "push", after=2, error=RuntimeError("the card is gone"))
    ```
    """

    def __init__(
        self,
        target: Any,
        method: str,
        *,
        after: int = 0,
        times: int | None = None,
        error: Exception | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """After so many good calls of `method`, the next `times` (None: all) wait `delay_s` and
        raise `error`, if there is one. AttributeError if there is no such method."""
        self._target = target
        self._method = method
        self._real: Callable[..., Any] = getattr(target, method)
        self._range = (after, None if times is None else after + times)
        self._error = error
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return self._harmed if name == self._method else getattr(self._target, name)

    def _harmed(self, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
        first, end = self._range
        if number >= first and (end is None or number < end):
            time.sleep(self._delay_s)
            if self._error is not None:
                raise self._error
        return self._real(*arguments, **named)
