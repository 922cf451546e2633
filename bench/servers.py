"""Servers in processes of their own: `omni serve` of a checkpoint, started, awaited and stopped.

Knows what the server prints and its /health. Knows nothing of requests.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POLL_S: Final = 0.05
GIVE_UP_S: Final = 900.0
"""Waiting for compiled steps counts."""
STOP_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running `omni serve`."""

    url: str
    pid: int
    ready_s: float
    """From the start of its process until /health said 200."""
    stages: dict[str, list[str]]
    """{pid: names of the stages in that process}."""
    lines: list[tuple[float, str]]
    """(seconds since the start, line) of what it has printed; grows."""


@contextmanager
def omni_server(checkpoint: str, *arguments: str) -> Iterator[Server]:
    """Serve a checkpoint on the CPU, on a free port of the loopback interface, until the end."""
    port = free_port()
    options = ["--device", "cpu", "--port", str(port), "--model-path", checkpoint, *arguments]
    with child([sys.executable, "-m", "omni_server", "serve", *options]) as process:
        news, url = _News(process), f"http://127.0.0.1:{port}"
        stages = _until_ready(process, f"{url}/health", news)
        yield Server(
            url=url,
            pid=process.pid,
            ready_s=time.monotonic() - news.began,
            stages=stages,
            lines=news.lines,
        )


def free_port() -> int:
    """One of the loopback interface that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def child(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process whose stdout is a pipe; interrupted at the end, and killed if it stays."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def guest(stage: str, listen: str, secret_file: Path) -> Iterator[None]:
    """`omni stage`, dialling in there; it leaves with its pipeline, and is killed if it stays."""
    way = ["--connect", listen, "--secret-file", str(secret_file)]
    command = [sys.executable, "-m", "omni_server", "stage", stage, *way]
    with subprocess.Popen(command) as process:
        try:
            yield
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            print(f"guest {stage!r} has not left within {STOP_S:g} s", file=sys.stderr)
        finally:
            process.kill()


class _News:
    """The lines a server prints, each with its time."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self._server = server
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self.lines.append((time.monotonic() - self.began, line.rstrip()))


def _until_ready(server: subprocess.Popen[str], url: str, news: _News) -> dict[str, list[str]]:
    """Ask until /health says 200; {pid: names of the stages in that process}."""
    while time.monotonic() - news.began < GIVE_UP_S and server.poll() is None:
        try:
            with urllib.request.urlopen(url) as reply:
                health = json.load(reply)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(POLL_S)
            continue
        stages: dict[str, list[str]] = {}
        for name, stage in health["stages"].items():
            stages.setdefault(str(stage["pid"]), []).append(name)
        return stages
    printed = "\n".join(line for _, line in news.lines)
    raise SystemExit(f"the server did not get ready; it printed:\n{printed}")
