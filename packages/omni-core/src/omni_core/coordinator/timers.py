"""Calls that are due later, on the event loop or on a clock of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias


class Timer(Protocol):
    """What `CallLater` returns."""

    def cancel(self) -> object:
        """Do not call."""


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""(seconds, function): as `asyncio.AbstractEventLoop.call_later`."""


def on_loop(delay_s: float, call: Callable[[], None]) -> Timer:
    """A call by the running event loop."""
    return asyncio.get_running_loop().call_later(delay_s, call)
