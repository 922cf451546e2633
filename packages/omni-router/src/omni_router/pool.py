"""Workers on this machine: a port, cards and a log file for each, and the keys they share with us.

Knows the command line of `omni serve` as far as its address, and files. What runs them is
`supervise`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import SystemRandom
from typing import Final

from omni_router.errors import ConfigError
from omni_router.keys import ADMIN_KEY, API_KEYS, WORKER_ADMIN_KEY, WORKER_KEY, Keys
from omni_router.settings import Settings, WorkerSpec
from omni_router.supervise import Child, Patience

LOOPBACK: Final = "127.0.0.1"
CARDS: Final = "CUDA_VISIBLE_DEVICES"
PATIENCE: Final = Patience(steady_s=600.0)
"""Large models may take minutes until they fail."""
_PORTS: Final = range(10_000, 32_000)
"""Below those that Linux gives to connections, one of which could take a worker's port while it is
down."""
_LIVE_S: Final = 1.0
_TRIES: Final = 1000
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 16 * 1024
_OURS: Final = (WORKER_KEY, WORKER_ADMIN_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One worker to run here."""

    spec: WorkerSpec
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path

    def child(self, patience: Patience) -> Child:
        """The process that is this worker."""
        return Child(
            name=self.spec.name,
            run=self.become,
            patience=patience,
            last_words=self.last_words,
            is_live=self.is_live,
        )

    def is_live(self) -> bool:
        """Whether it answers, whatever it says."""
        connection = HTTPConnection(self.spec.url.removeprefix("http://"), timeout=_LIVE_S)
        try:
            connection.request("GET", "/live")
            connection.getresponse()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        return True

    def become(self) -> None:
        """Turn this process into the worker; does not return."""
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        os.write(log, f"--- {self.spec.name} starts, {now}, pid {os.getpid()}\n".encode())
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, its in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(ours, its)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and would pass on
        os.execvpe(self.command[0], self.command, self.environment)

    def last_words(self) -> str:
        """The end of its log, and what to do."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        except OSError as exc:
            lines = [str(exc)]
        text = "".join(f"\n  | {line}" for line in lines)
        return f"; see what is wrong in {self.log}, whose last lines are:{text}"


def launches(
    settings: Settings,
    keys: Keys,
    environment: Mapping[str, str],
    command: Sequence[str] = (),
) -> tuple[Launch, ...]:
    """The workers that the settings ask for; ConfigError for what cannot be.

    `command` is what gets the arguments, `omni serve` by default. `environment` is the router's.
    """
    if not settings.launch:
        return ()
    _check(settings)
    directory = _log_directory(settings.log_dir)
    shared = {name: value for name, value in environment.items() if name not in _OURS}
    shared |= _keys_of_workers(keys, environment)
    words = (*(command or _omni_serve()), *settings.launch_arguments, "--host", LOOPBACK, "--port")
    ports = _free_ports(settings.launch)
    return tuple(
        Launch(
            spec=WorkerSpec(url=f"http://{LOOPBACK}:{port}", name=f"worker-{number}"),
            command=(*words, str(port)),
            environment=shared | _cards(settings.gpus, number),
            log=directory / f"worker-{number}.log",
        )
        for number, port in enumerate(ports)
    )


def with_keys_for_workers(keys: Keys, environment: Mapping[str, str]) -> Keys:
    """With a key of our own at workers that take their keys from our environment, where the
    operator has given us none: it is drawn, and nobody else has it."""
    worker, worker_admin = keys.worker, keys.worker_admin
    if worker is None and API_KEYS in environment:
        worker = secrets.token_hex(32)
    if worker_admin is None and ADMIN_KEY in environment:
        worker_admin = secrets.token_hex(32)
    return replace(keys, worker=worker, worker_admin=worker_admin)


def _keys_of_workers(keys: Keys, environment: Mapping[str, str]) -> dict[str, str]:
    """Keys of clients and operators, who ask through us, and ours."""
    added = ((API_KEYS, keys.worker), (ADMIN_KEY, keys.worker_admin))
    return {
        name: f"{environment[name]},{key}" for name, key in added if name in environment and key
    }


def _check(settings: Settings) -> None:
    problems = [
        f"{word} behind -- is for the router to choose; leave it out"
        for word in settings.launch_arguments
        if word.partition("=")[0] in ("--host", "--port")
    ]
    if settings.gpus and len(settings.gpus) != settings.launch:
        problems.append(
            f"--gpus has {len(settings.gpus)} entries, and --launch starts {settings.launch} "
            "workers; give one for each, as in --gpus 0,1; 0+1 gives two cards to one worker"
        )
    taken = {f"worker-{number}" for number in range(settings.launch)}
    if clash := taken & {spec.name for spec in settings.workers}:
        problems.append(f"--launch names its workers {clash.pop()} and so on; rename yours")
    if problems:
        raise ConfigError("\n".join(problems))


def _cards(gpus: Sequence[str | int], number: int) -> dict[str, str]:
    return {CARDS: str(gpus[number]).replace("+", ",")} if gpus else {}


def _log_directory(named: str | None) -> Path:
    try:
        if named is None:
            return Path(tempfile.mkdtemp(prefix="omni-router-"))
        directory = Path(named)
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(0, "not permitted")
    except OSError as exc:
        raise ConfigError(
            f"--log-dir: {named} cannot be written to: {exc.strerror}; name a directory of yours"
        ) from exc
    return directory.absolute()


def _omni_serve() -> tuple[str, str]:
    """`omni serve` of our own environment, else of the PATH."""
    beside = Path(sys.executable).with_name("omni")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("omni")
    if found is None:
        raise ConfigError(
            "--launch needs the command omni, and there is none; pip install omni-server and the "
            "package of a model"
        )
    return found, "serve"


def _free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listens on."""
    random = SystemRandom()
    found: list[int] = []
    for port in random.sample(_PORTS, min(_TRIES, len(_PORTS))):
        with socket.socket() as asked:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                asked.bind((LOOPBACK, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ConfigError(f"--launch: no {count} free ports on {LOOPBACK}; stop what is using them")
