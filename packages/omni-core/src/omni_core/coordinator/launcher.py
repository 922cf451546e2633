"""Stage processes: start them, notice at once when one ends, stop them all.

Knows processes. Knows nothing of stages or requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_TAIL_LINES: Final = 40
_READ_BYTES: Final = 64 * 1024
_OUTPUT_GRACE_S: Final = 1.0
_TERMINATE_S: Final = 2.0

log = logging.getLogger("omni.stage")


class Launcher:
    """Owns the child processes of one pipeline."""

    def __init__(self, run_dir: Path, on_exit: Callable[[str, int, str], None]) -> None:
        """`on_exit(name, return code, last lines of its output)` is called on the event loop."""
        self._run_dir = run_dir
        self._on_exit = on_exit
        self._children: dict[str, Process] = {}
        self._tails: dict[str, deque[str]] = {}
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self, name: str, env: Mapping[str, str]) -> None:
        """Spawn one stage process."""
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "omni_core.stage",
            name,
            str(self._run_dir),
            stdin=PIPE,  # closes when we die, whatever kills us; the child leaves then
            stdout=PIPE,
            stderr=STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
        self._children[name] = child
        self._tails[name] = deque(maxlen=_TAIL_LINES)
        self._watchers.append(asyncio.create_task(self._watch(name, child)))

    def pid(self, name: str) -> int:
        """The pid of a process; 0 until it is started."""
        child = self._children.get(name)
        return 0 if child is None else child.pid

    async def stop(self, grace_s: float) -> None:
        """Wait for the children to leave (they were asked); then terminate, then kill."""
        for limit_s, insist in ((grace_s, Process.terminate), (_TERMINATE_S, Process.kill)):
            if await self._all_left(limit_s):
                return
            self._insist(insist)
        await self._all_left(None)

    def kill(self) -> None:
        """Kill at once what is still there."""
        self._insist(Process.kill)

    def _insist(self, insist: Callable[[Process], None]) -> None:
        for child in self._children.values():
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    insist(child)

    async def _all_left(self, timeout_s: float | None) -> bool:
        if not self._watchers:
            return True
        _, late = await asyncio.wait(self._watchers, timeout=timeout_s)
        return not late

    async def _watch(self, name: str, child: Process) -> None:
        reader = asyncio.create_task(self._read_output(name, child))
        code = await child.wait()
        await asyncio.wait([reader], timeout=_OUTPUT_GRACE_S)
        reader.cancel()  # a grandchild may keep the pipe open for ever
        self._on_exit(name, code, "\n".join(self._tails[name]))

    async def _read_output(self, name: str, child: Process) -> None:
        """Lines of any length, those that a progress bar ends with a carriage return included."""
        assert child.stdout is not None
        rest = b""
        while data := await child.stdout.read(_READ_BYTES):
            *lines, rest = re.split(rb"[\r\n]+", rest + data)
            if len(rest) > _READ_BYTES:
                lines, rest = [*lines, rest], b""
            for line in filter(None, lines):
                self._note(name, line)
        if rest:
            self._note(name, rest)

    def _note(self, name: str, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self._tails[name].append(text)
        level = logging.WARNING if text.startswith("WARNING ") else logging.INFO
        log.log(level, "[%s] %s", name, text)
