"""Where a number was measured, and of which code: each in one line."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine() -> str:
    """The machine now, for the head of a result."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    processor = found[1] if found else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {processor}, {cores} cores, "
        f"load {os.getloadavg()[0]:.1f} before, Python {platform.python_version()}, "
        f"torch {_version('torch')}, transformers {_version('transformers')}"
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def describe_commit() -> str:
    """The commit of the working tree, "+changes" if a file of it differs; "" outside of git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return ""
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
    )
    return head.stdout.strip() + ("+changes" if changed.stdout else "")
