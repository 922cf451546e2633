"""Where things lie in the directory of a run, which only its user may enter."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COORDINATOR: Final = "coordinator"


def address(run_dir: Path, process: str) -> str:
    """The ZMQ address of a process."""
    return f"ipc://{run_dir / process}.ipc"


def segments(run_dir: Path) -> Path:
    """The directory of the shared-memory segments."""
    return run_dir / "segments"
