"""What a server holds and what a dead one left, read from the system and not from its own word.

Knows Linux's /proc and where runs keep their sockets and segments. Asks no process anything.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from processes import all_stats

_PROC: Final = Path("/proc")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES: Final = 512
_STATE, _PARENT = 0, 1
"""Fields of a stat file behind the name of the program (proc(5))."""
_STAGE: Final = re.compile(r"omni_core\.stage\0([^\0]+)\0([^\0]+)\0")
_ROOTS: Final = (Path("/dev/shm"), Path(tempfile.gettempdir()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a server and its children hold at one moment."""

    processes: dict[str, int]
    """{name: pid}; the server itself is "coordinator"."""
    zombies: int
    sockets: int
    """Socket files in the run directory."""
    segments: int
    """Files of shared memory in the run directory."""
    segment_bytes: int
    open_files: dict[str, int]
    """{process: file descriptors}."""
    resident_bytes: dict[str, int]


def holdings(server: int) -> Holdings:
    """Of a living server."""
    processes = {"coordinator": server, **stage_processes(server)}
    files = [path for run in run_directories(server) for path in _below(run)]
    segments = [path for path in files if path.parent.name == "segments"]
    return Holdings(
        processes=processes,
        zombies=sum(state == "Z" for state, _ in _descendants(server).values()),
        sockets=sum(path.is_socket() for path in files),
        segments=len(segments),
        segment_bytes=sum(_size(path) for path in segments),
        open_files={name: _open_files(pid) for name, pid in processes.items()},
        resident_bytes={name: _resident_bytes(pid) for name, pid in processes.items()},
    )


def stage_processes(server: int) -> dict[str, int]:
    """{name: pid} of a server's living stage processes, orphans included. A successor of a process
    that died goes by the name of its predecessor."""
    return {name.partition("@")[0]: pid for pid, name in _stage_names(server).items()}


def stage_sockets(server: int) -> dict[str, Path]:
    """{name: socket file} of the server and its stage processes."""
    [run] = run_directories(server)
    names = ["coordinator", *_stage_names(server).values()]
    return {name.partition("@")[0]: run / f"{name}.ipc" for name in names}


def run_directories(server: int) -> list[Path]:
    """Directories of sockets and segments that a server, alive or dead, has made."""
    return [path for root in _ROOTS for path in root.glob("omni-*") if _is_run_of(server, path)]


def left_behind(server: int) -> list[str]:
    """What a server that has ended left: processes and files, by name."""
    processes = [f"process {name} ({pid})" for name, pid in stage_processes(server).items()]
    files = [str(path) for run in run_directories(server) for path in (run, *_below(run))]
    return processes + files


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    state = _all_states().get(pid)
    return state is not None and state[0] != "Z"


def _stage_names(server: int) -> dict[int, str]:
    """{pid: name it was started with}, later processes last."""
    found = {}
    for pid, (state, _) in sorted(_all_states().items()):
        named = _STAGE.search(_command(pid))
        if named and state != "Z" and _is_run_of(server, Path(named[2])):
            found[pid] = named[1]
    return found


def _is_run_of(server: int, directory: Path) -> bool:
    return directory.name.startswith(f"omni-{server}-")


def _below(directory: Path) -> list[Path]:
    return [Path(where, name) for where, _, names in os.walk(directory) for name in names]


def _size(path: Path) -> int:
    """What a file takes, which may be less than its length."""
    try:
        return path.stat().st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return 0


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(_PROC / str(pid) / "fd"))
    except FileNotFoundError:
        return 0


def _resident_bytes(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        return 0


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _descendants(root: int) -> dict[int, tuple[str, int]]:
    """{pid: (state, parent)} of everything below `root`."""
    states = _all_states()
    family = [root]
    for pid in family:  # grows while it is walked
        family += [child for child, (_, parent) in states.items() if parent == pid]
    return {pid: states[pid] for pid in family[1:]}


def _all_states() -> dict[int, tuple[str, int]]:
    return {pid: (fields[_STATE], int(fields[_PARENT])) for pid, fields in all_stats()}
