"""Work that would hold up every other request if the event loop did it.

Knows threads and the interpreter's lock: Python code gives it up every few milliseconds, one call
into C that does not release it keeps everybody waiting, whatever its thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LONG_BODY_BYTES: Final = 16 * 1024
"""What is made of a shorter body takes two milliseconds at most, however many messages it has."""


async def off_loop(work: Callable[[], T], *, if_: bool) -> T:
    """What `work` returns, done in a thread if it is long; the way there and back takes 0.1 ms."""
    return await asyncio.to_thread(work) if if_ else work()
