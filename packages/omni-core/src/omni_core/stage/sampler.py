"""What the threads of this process are doing: their Python stacks, many times a second.

Looks from a thread of its own and holds nobody up but by the interpreter's lock. Knows nothing of
stages: their loops are told apart by the names of their threads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Final

INTERVAL_S: Final = 0.005
_MOST_STACKS: Final = 10_000
"""Different ones; those that come later are counted together."""
_DEEPEST: Final = 100
_OTHERS: Final = "others"


def sample(seconds: float) -> dict[str, int]:
    """{"thread;outermost;...;innermost": how often it was seen} over so long a time.

    Frames are "module.function". What native code does is seen as the function that called it.
    """
    stacks: Counter[str] = Counter()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        _look(stacks)
        time.sleep(INTERVAL_S)
    return dict(stacks)


def _look(stacks: Counter[str]) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for thread_id, frame in sys._current_frames().items():
        if thread_id != threading.get_ident():
            name = names.get(thread_id, "native").replace(";", ",")
            stack = ";".join([name, *_frames(frame)])
            known = stack in stacks or len(stacks) < _MOST_STACKS
            stacks[stack if known else _OTHERS] += 1


def _frames(innermost: FrameType) -> list[str]:
    found: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < _DEEPEST:
        found.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]
