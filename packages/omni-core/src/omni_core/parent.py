"""Dying with the parent, whatever kills it and whatever this process is doing then.

Knows the kernel's word for it. Where there is none (only Linux has one), the janitor does it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the process `parent`, which started it, has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
