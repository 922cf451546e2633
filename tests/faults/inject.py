"""Faults, done to a running server from outside: signals, sockets, files and limits.

Nothing here reaches into our code: what is injected is what a kernel, a disk or a stranger does.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import zmq

_LINGER_MS: Final = 2000
_NOISE: Final = (b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\1\x7f")
"""No ZMTP at all, and the first bytes of a greeting that goes no further."""
MALFORMED: Final[tuple[Sequence[bytes], ...]] = (
    [b""],
    [b"\xc1"],
    [b"\x91" * 10_000],
    [os.urandom(512)],
    [b"a", b"b", b"c"],
    [msgspec.msgpack.encode({"type": "Setup", "version": "x"})],
    [msgspec.msgpack.encode([{"type": "Setup", "version": "x"}])],
    [msgspec.msgpack.encode([{"type": "NoSuchMessage", "request_id": "r"}])],
    [msgspec.msgpack.encode([{"type": "Emit", "request_id": 7}]), b"\x00" * 64],
)
"""Frames that are no message of ours: nothing, half of something, and the wrong something."""


def kill(pid: int) -> float:
    """SIGKILL; the time it was sent."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have been killed for standing still
            os.kill(pid, signal.SIGCONT)


@contextmanager
def delayed(pid: int, *, stop_s: float, run_s: float) -> Iterator[None]:
    """A process that answers late: it stands still for `stop_s` after every `run_s`."""
    leaving = threading.Event()

    def pulse() -> None:
        while not leaving.wait(run_s):
            with stopped(pid):
                leaving.wait(stop_s)

    pulsing = threading.Thread(target=pulse)
    pulsing.start()
    try:
        yield
    finally:
        leaving.set()
        pulsing.join()


def send_malformed(socket_file: Path) -> int:
    """Throw all of `MALFORMED` at the socket of a process; how many messages that were."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as line:
        line.connect(f"ipc://{socket_file}")
        for frames in MALFORMED:
            line.send_multipart(frames)
        line.close(linger=_LINGER_MS)
    return len(MALFORMED)


def send_noise(socket_file: Path) -> None:
    """Connect to the socket of a process and say what no peer of ours would."""
    for noise in _NOISE:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(socket_file))
            line.sendall(noise)


@contextmanager
def memory_refused(pid: int) -> Iterator[None]:
    """The kernel gives a process no more address space than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have died of it
            resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


def scribble(file: Path, offset: int, size_bytes: int) -> None:
    """Overwrite a part of a file that others have mapped."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"\xff" * size_bytes)


def truncate(file: Path) -> None:
    """Take the bytes of a file from those who have it mapped."""
    os.truncate(file, 0)
