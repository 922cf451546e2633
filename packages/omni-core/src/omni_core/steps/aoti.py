"""Compiled steps on a CPU: libraries made by AOTInductor, kept on disk and loaded from there.

Knows the cache, the compiling process and how a library is called. Imports no compiler: serving
processes start fast and stay small.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch._C._aoti import AOTIModelContainerRunnerCpu  # without the compilers behind it

from omni_core.errors import StageError
from omni_core.steps.describe import TensorDoc
from omni_core.steps.request import Request

CACHE_VARIABLE: Final = "OMNI_STEP_CACHE"
KEPT_LIBRARIES: Final = 64
LOCK: Final = "compiling.lock"
NICENESS: Final = 19
LAST_WORDS: Final = 800
"""Characters that are shown of the last line of a failed compiler."""


def cache_directory() -> Path:
    """Where libraries are kept: `OMNI_STEP_CACHE`, else omni/steps in the user's cache."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "omni" / "steps"


class Libraries:
    """The compiled steps of this machine's user, by what they were made of.

    A library is code that will run here, so none is taken from a directory that others can write.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, request: Request) -> Path | None:
        """The library for a request, if some process has made it before."""
        path = self._path(request)
        if not path.exists():
            return None
        self._check_owner()
        path.touch()  # the newest are kept
        return path

    def make(self, request: Request) -> Path:
        """Compile in another process and wait; StageError with its last line if that fails.

        One process compiles at a time for each cache directory: the others wait for their turn here
        and not with a compiler loaded, and take what was made meanwhile.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_owner()
        path = self._path(request)
        with (self._directory / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(request, path)
        self._forget_old()
        return path

    def _check_owner(self) -> None:
        info = self._directory.stat()
        if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StageError(
                f"others can write to {self._directory}, and what is in it would run here; "
                f"chmod go-w it, or set {CACHE_VARIABLE} to a directory of your own"
            )

    def _path(self, request: Request) -> Path:
        return self._directory / f"{request.key()}.so"

    def _forget_old(self) -> None:
        newest_first = sorted(self._directory.glob("*.so"), key=_age)
        for path in newest_first[KEPT_LIBRARIES:]:
            path.unlink(missing_ok=True)


def _compile(request: Request, path: Path) -> None:
    """Run the worker; StageError with its last line if it fails."""
    command = [sys.executable, "-m", "omni_core.steps.worker", str(path)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as worker:
        _step_back(worker.pid)
        assert worker.stdin is not None
        assert worker.stderr is not None
        worker.stdin.write(msgspec.json.encode(request) + b"\n")
        worker.stdin.flush()  # and left open: it leaves when this process does
        said = worker.stderr.read().decode(errors="replace").strip()
    if worker.returncode != 0:
        last = said.splitlines()[-1:] or [f"exit status {worker.returncode}"]
        raise StageError(last[0][-LAST_WORDS:])


def _step_back(pid: int) -> None:
    """Lowest priority for a process that leads its session. Linux may share time between sessions
    first, and between the processes of one after that; then the session must step back too."""
    os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
    group = Path(f"/proc/{pid}/autogroup")
    with contextlib.suppress(OSError):  # there is none, or it may not be changed now
        group.write_text(str(NICENESS))


def _age(path: Path) -> float:
    return -path.stat().st_mtime if path.exists() else 0.0


class Library:
    """A loaded step. Its weights are those given, not a copy."""

    def __init__(self, path: Path, weights: Sequence[torch.Tensor]) -> None:
        self._weights = weights  # the runner keeps mere pointers
        self._small = [weight for weight in weights if TensorDoc.of(weight).is_small]
        self._runner = AOTIModelContainerRunnerCpu(str(path), 1)
        names = self._runner.get_constant_names_to_original_fqns()
        given = {f"weight{number}": weight for number, weight in enumerate(weights)}
        if own := set(names.values()) - set(given):
            raise StageError(f"it makes constants of its own ({', '.join(sorted(own))})")
        constants = {name: given[source] for name, source in names.items()}
        self._runner.update_constant_buffer(constants, False, True, True)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """One call; tensors must be as the library was compiled for, which it does not check."""
        return tuple(self._runner.run([*self._small, *tensors]))
