"""Where processes listen: one socket file per process in a directory only the user may enter."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COORDINATOR: Final = "coordinator"


def address(directory: Path, process: str) -> str:
    """The ZMQ address of a process."""
    return f"ipc://{directory / process}.ipc"
