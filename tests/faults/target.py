"""A real `omni serve` to do harm to: started, looked at from outside, and stopped.

Knows its command line, what it prints and its HTTP routes for operators. Knows nothing of requests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from traces import run_directories, stage_processes, stage_sockets

READY: Final = "Omni is ready on "
START_S: Final = 120.0
STOP_S: Final = 40.0
WHOLE_S: Final = 30.0
LOOK_S: Final = 0.01
_GAUGE: Final = re.compile(r'omni_stage_(\w+)\{stage="([^"]+)"\} (\S+)')
_COUNTER: Final = re.compile(r"^(omni_\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)

#: One process for each kind of stage that a fault is aimed at.
LAYOUT: Final = ("--image_encoder.process", "encoders", "--audio_encoder.process", "encoders")


class Target:
    """One server. It may be killed at any time; what it was and left can be asked afterwards."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_line` is called with each line that it prints, in a thread."""
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []
        """What it has printed; grows."""
        self._on_line = on_line
        self._began_s = time.monotonic()
        self.ready_s = 0.0
        """How long the start took."""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def wait_ready(self) -> None:
        """Until it says so; AssertionError with what it printed if it never does."""
        self._ready.wait(START_S)
        assert self.url, "the server did not get ready:\n" + "\n".join(self.lines)

    def wait_whole(self) -> None:
        """Until every stage is ready, which it may not be after a death; in `WHOLE_S`, or the time
        that all took to start if the machine is slow."""
        within_s = max(WHOLE_S, self.ready_s)
        until(lambda: self.health()["status"] == "ready", within_s, "every stage is ready")

    @property
    def run_dir(self) -> Path:
        """The directory of its sockets and segments."""
        [directory] = run_directories(self.pid)
        return directory

    def processes(self) -> dict[str, int]:
        """{name of a stage process: pid}, of those alive now."""
        return stage_processes(self.pid)

    def sockets(self) -> dict[str, Path]:
        """{process: its socket file}, "coordinator" for the server itself."""
        return stage_sockets(self.pid)

    def is_ready(self) -> bool:
        """Whether it lets new requests in."""
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=STOP_S) as reply:
                return reply.status == 200
        except OSError:  # 503 while it drains, and nobody there afterwards
            return False

    def health(self) -> dict[str, Any]:
        """The body of /health, whatever its status."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=STOP_S) as reply:
                body = reply.read()
        except urllib.error.HTTPError as refused:
            body = refused.read()
        health: dict[str, Any] = json.loads(body)
        return health

    def metrics(self) -> str:
        """The text of /metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=STOP_S) as reply:
            text: str = reply.read().decode()
        return text

    def gauges(self) -> dict[tuple[str, str], float]:
        """{(stage, name): number}: what those stages that answer in time say of themselves."""
        return {
            (stage, name): float(value) for name, stage, value in _GAUGE.findall(self.metrics())
        }

    def counter(self, name: str) -> float:
        """The sum of a number of the server over all its labels; 0 if there is none."""
        found = _COUNTER.findall(self.metrics())
        return sum(float(value) for metric, _, value in found if metric == name)

    def signal(self, number: int) -> None:
        """Send a signal to the server itself."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Its exit code, once it has ended."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    def close(self) -> None:
        """End it and its children, whatever state they are in."""
        children = self.processes().values()
        for pid in (self.pid, *children):
            if pid == self.pid and self.exit_code is not None:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._reader.join(STOP_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            self._on_line(self.lines[-1])
            if line.startswith(READY):
                self.url = line.removeprefix(READY).strip()
                self.ready_s = time.monotonic() - self._began_s
                self._ready.set()
        self._ready.set()


Start: TypeAlias = Callable[..., Target]
"""Start a server of some checkpoint with the given arguments; not yet ready."""


def start(
    checkpoint: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> Target:
    """`omni serve CHECKPOINT ARGUMENTS` on a free port of the loopback interface, not yet ready."""
    command = [sys.executable, "-m", "omni_server", "serve", "--model-path", checkpoint]
    command += ["--port", "0", "--device", "cpu", "--compile", "off", *arguments]
    return Target(command, os.environ if environment is None else environment, on_line)


@contextmanager
def serving(checkpoint: str, *arguments: str, **options: Any) -> Iterator[Target]:
    """A ready server, gone at the end in any case; `options` are those of `start`."""
    target = start(checkpoint, *arguments, **options)
    try:
        target.wait_ready()
        yield target
    finally:
        target.close()


def echo_environment(directory: Path) -> dict[str, str]:
    """An environment in which the echo pipeline is an installed plugin, and the only one."""
    info = directory / "echo_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni.plugins]\necho = omni_core.testing.echo\n")
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMNI_PLUGINS": "echo"}


def until(holds: Callable[[], object], within_s: float, what: str) -> float:
    """Look until it holds; the seconds that took. AssertionError with `what` after `within_s`.

    What another process does to the system has no event here to wait for.
    """
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, f"not within {within_s} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic() - began
