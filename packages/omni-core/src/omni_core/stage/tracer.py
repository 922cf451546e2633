"""What torch does in this process, in every thread, as a trace that Chrome and Perfetto show.

Knows torch's profiler. Knows nothing of stages. Imported only where something is recorded, so it
costs nothing before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig  # the one way to record threads that run already
from torch.profiler import ProfilerActivity, profile


class Tracer:
    """One recording. `run` belongs to a thread of its own."""

    def __init__(self, file: Path, seconds: float, stopped: threading.Event) -> None:
        """It ends after so long, or once `stopped` is set."""
        self._file = file
        self._seconds = seconds
        self._stopped = stopped
        self._profiler = profile(
            activities=_activities(),
            experimental_config=_ExperimentalConfig(profile_all_threads=True, trace_only=True),
        )

    def start(self) -> None:
        """Record from now on. OSError if the file cannot be written, which it must not be yet."""
        self._file.touch(mode=0o600, exist_ok=False)
        with _or_no_file(self._file):
            self._profiler.start()

    def finish(self) -> dict[str, int]:
        """Wait for the end, and write the file; {name: number} of the threads."""
        with _or_no_file(self._file):
            self._stopped.wait(self._seconds)
            threads = {t.name: t.native_id or 0 for t in threading.enumerate()}
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self._file))
        return threads


@contextmanager
def _or_no_file(file: Path) -> Iterator[None]:
    """Leave no file behind of a recording that fails: its reader would take it for one."""
    try:
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _activities() -> list[ProfilerActivity]:
    if not torch.cuda.is_available():
        return [ProfilerActivity.CPU]
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
