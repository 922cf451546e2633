"""The real command in a process of its own, its workers and its own processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omni_router.serve import READY

HERE = Path(__file__).parent
DEADLINE_S = 20.0


@dataclass
class Started:
    """A router's parent process, and what it has said."""

    process: subprocess.Popen[str]
    log: Path
    url: str = ""
    key: str = "a-key-of-clients"
    admin: str = "a-key-of-operators"

    def ask(self, path: str, body: Any = None, *, is_admin: bool = False) -> Any:
        """What the router answers; each time over a new connection."""
        data = None if body is None else json.dumps(body).encode()
        key = self.admin if is_admin else self.key
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
            return json.load(reply)

    def chat(self) -> Any:
        """Which worker answers."""
        return self.ask("/v1/chat/completions", {"model": "plain", "messages": []})

    def states(self) -> dict[str, str]:
        """{worker: state}, as one of the processes has it."""
        try:
            health = self.ask("/health")
        except urllib.request.HTTPError as error:
            health = json.load(error)
        return {name: worker["state"] for name, worker in health["workers"].items()}

    def are_ready(self, *names: str) -> bool:
        """Whether these are the workers, and all ready; of one of the processes."""
        return self.states() == dict.fromkeys(names, "ready")

    def answers(self) -> bool:
        """Whether a request is answered by a worker."""
        try:
            return bool(self.chat()["pid"])
        except OSError:  # of which HTTPError is one
            return False

    def children(self) -> dict[int, str]:
        """{pid: command line} of the processes it has started and that live."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(pid): self.command_of(int(pid)) for pid in found.split()}

    def routers(self) -> list[int]:
        """Processes of the router among them."""
        return [pid for pid, line in self.children().items() if "plain_worker" not in line]

    def said(self) -> str:
        """Its log."""
        return self.log.read_text()

    def end(self, *signals: signal.Signals) -> int:
        """Its exit status once it has these signals."""
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.2)
        return self.process.wait(DEADLINE_S)

    @staticmethod
    def until(is_so: Callable[[], Any], what: str) -> Any:
        """What `is_so` says once it says yes; fails after a while."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            try:
                if found := is_so():
                    return found
            except OSError:
                pass
            time.sleep(0.05)
        pytest.fail(f"not in {DEADLINE_S:g} s: {what}")

    @staticmethod
    def command_of(pid: int) -> str:
        """The command line of a process; empty if there is none, or it is not buried yet."""
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""

    @staticmethod
    def are_gone(pids: Any) -> bool:
        """Whether none of these processes lives."""
        return not any(Started.command_of(pid) for pid in pids)


Launcher = Callable[..., AbstractContextManager[Started]]


@pytest.fixture
def launched(tmp_path: Path) -> Launcher:
    """`omni-router ARGUMENTS`, and `plain_worker.py` for `omni`; waits until it is ready unless
    `fails`."""

    @contextmanager
    def starting(*arguments: str, fails: bool = False, **environment: str) -> Iterator[Started]:
        log = tmp_path / "router.log"
        quick = ("--host", "127.0.0.1", "--port", "0", "--probe-interval-s", "0.1")
        command = [sys.executable, str(HERE / "launching.py"), *quick, *arguments]
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | environment,
            ) as process,
        ):
            started = Started(process, log)
            try:
                if not fails:
                    started.url = _url_of(process, log)
                yield started
            finally:
                left = [] if process.poll() is not None else started.children()
                process.kill()
                Started.until(lambda: Started.are_gone(left), "the children end with their parent")

    return starting


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    pytest.fail(f"the router ended with {process.wait()}:\n{log.read_text()}")


@pytest.fixture
def plain_worker() -> Iterator[Callable[..., str]]:
    """URLs of workers that nobody supervises."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> str:
        port = _free_port()
        command = [sys.executable, str(HERE / "plain_worker.py"), "serve", *arguments]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def free_ports() -> Callable[[int], int]:
    """The first of so many ports in a row that are free."""

    def find(count: int) -> int:
        while True:
            first = _free_port()
            with suppress(OSError), ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
                return first

    return find
