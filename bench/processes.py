"""CPU time and memory of a process and its descendants, read from Linux's /proc.

Proportional set size (PSS): a page that several processes map counts for each of them by its share,
so that the sizes of a group of processes add up to what the group takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT = 1
_CPU_TICKS = slice(11, 15)
"""utime, stime and those of the children waited for; counted from the state field (proc(5))."""


def tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    parents = {pid: int(fields[_PARENT]) for pid, fields in all_stats()}
    found = [root]
    for pid in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(root: int) -> float:
    """User and system time that `root` and its descendants have taken so far."""
    ticks = 0
    members = set(tree(root))
    for pid, fields in all_stats():
        if pid in members:
            ticks += sum(int(field) for field in fields[_CPU_TICKS])
    return ticks / _TICKS_PER_S


def pss_bytes(pid: int) -> dict[str, int]:
    """{"total", "anon", "file", "shmem"}: proportional set size of one process, in bytes."""
    sizes = {}
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        sizes[name.rstrip(":")] = int(value) * 1024
    parts = {"total": "Pss", "anon": "Pss_Anon", "file": "Pss_File", "shmem": "Pss_Shmem"}
    return {part: sizes[name] for part, name in parts.items()}


def all_stats() -> Iterator[tuple[int, list[str]]]:
    """(pid, fields of its stat file from the state on) of every process still there."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(entry.name), text.rpartition(")")[2].split()
