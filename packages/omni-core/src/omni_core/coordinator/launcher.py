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
from asyncio import SubprocessTransport
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from omni_core.janitor import Janitor

_TAIL_LINES: Final = 40
_LINE_BYTES: Final = 64 * 1024
_OUTPUT_GRACE_S: Final = 1.0
_TERMINATE_S: Final = 2.0
_TRACEBACK: Final = "Traceback (most recent call last):"
_LEVELS: Final = {
    "DEBUG": logging.INFO,  # it is printed where DEBUG was asked for
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
}

log = logging.getLogger("omni.stage")


class Child(asyncio.SubprocessProtocol):
    """One process: its output, line by line, and the moment it ends.

    The end is told when the kernel tells it, not when the output ends: a grandchild may keep that
    open for ever.
    """

    def __init__(self, name: str, on_exit: Callable[[Child], None]) -> None:
        self.name = name
        self.pid = 0
        self._on_exit = on_exit
        self._transport: SubprocessTransport | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._rest = b""
        self._level, self._in_traceback = logging.INFO, False
        self._drained = asyncio.Event()
        self.left = asyncio.Event()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives, negative for a signal."""
        return None if self._transport is None else self._transport.get_returncode()

    async def last_words(self) -> str:
        """The last lines of its output, once it has ended."""
        await self._drained.wait()
        return "\n".join(self._tail)

    def terminate(self) -> None:
        """Ask it to leave."""
        if self._transport is not None and not self.left.is_set():
            with contextlib.suppress(ProcessLookupError):
                self._transport.terminate()

    def kill(self) -> None:
        """Make it leave."""
        if self._transport is not None and not self.left.is_set():
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.SubprocessProtocol`."""
        self._transport = cast("SubprocessTransport", transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Lines of any length, those that a progress bar ends with a carriage return included."""
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        if len(self._rest) > _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in filter(None, lines):
            self._note(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """See `asyncio.SubprocessProtocol`."""
        if fd == 1:
            if self._rest:
                self._note(self._rest)
            self._rest = b""
            self._drained.set()

    def process_exited(self) -> None:
        """See `asyncio.SubprocessProtocol`."""
        assert self._transport is not None
        asyncio.get_running_loop().call_later(_OUTPUT_GRACE_S, self._transport.close)
        self.left.set()
        self._on_exit(self)

    def _note(self, line: bytes) -> None:
        """Log a line, and the traceback behind it, as it was logged there; others as INFO: damaged
        media make libraries print thousands."""
        text = line.decode(errors="replace").rstrip()
        self._tail.append(text)
        level = _LEVELS.get(text.partition(" ")[0])
        self._level = self._level if level is None else level
        belongs = level is not None or self._in_traceback or text == _TRACEBACK
        self._in_traceback = text == _TRACEBACK or (self._in_traceback and text.startswith(" "))
        log.log(self._level if belongs else logging.INFO, "[%s] %s", self.name, text)


class Launcher:
    """Owns the child processes of one pipeline."""

    def __init__(self, run_dir: Path, janitor: Janitor, on_exit: Callable[[Child], None]) -> None:
        """`on_exit` is called on the event loop, as soon as a child has ended."""
        self._run_dir = run_dir
        self._janitor = janitor
        self._on_exit = on_exit
        self._children: dict[str, Child] = {}

    async def start(self, name: str, env: Mapping[str, str]) -> None:
        """Spawn one stage process; the name is used once."""
        child = self._children[name] = Child(name, self._exited)
        try:
            await self._spawn(child, env)
        except BaseException:
            self._children.pop(name, None)
            child.left.set()
            raise
        if not child.left.is_set():
            self._janitor.watch(child.pid)

    def pid(self, name: str) -> int:
        """The pid of a process; 0 until it is started and once it has ended."""
        child = self._children.get(name)
        return 0 if child is None else child.pid

    def kill(self, name: str) -> None:
        """Kill one child."""
        if child := self._children.get(name):
            child.kill()

    async def stop(self, grace_s: float) -> None:
        """Wait for the children to leave (they were asked); then terminate, then kill."""
        for limit_s, insist in ((grace_s, Child.terminate), (_TERMINATE_S, Child.kill)):
            if await self._all_left(limit_s):
                return
            for child in self._children.values():
                insist(child)
        await self._all_left(None)

    def kill_all(self) -> None:
        """Kill at once what is still there."""
        for child in self._children.values():
            child.kill()

    async def _spawn(self, child: Child, env: Mapping[str, str]) -> None:
        await asyncio.get_running_loop().subprocess_exec(
            lambda: child,
            sys.executable,
            "-m",
            "omni_core.stage",
            child.name,
            str(self._run_dir),
            str(os.getpid()),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )

    async def _all_left(self, timeout_s: float | None) -> bool:
        waits = [asyncio.create_task(child.left.wait()) for child in self._children.values()]
        if not waits:
            return True
        _, late = await asyncio.wait(waits, timeout=timeout_s)
        for wait in late:
            wait.cancel()
        return not late

    def _exited(self, child: Child) -> None:
        self._janitor.unwatch(child.pid)
        self._children.pop(child.name, None)
        self._on_exit(child)
