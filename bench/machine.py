"""Where a number was measured: processor, cores, load, versions and date, in one line."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """The machine now, for the head of a result."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    processor = found[1] if found else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {processor}, {cores} cores, "
        f"load {os.getloadavg()[0]:.1f} before, Python {platform.python_version()}, "
        f"torch {version('torch')}, transformers {version('transformers')}"
    )
