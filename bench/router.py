"""What a router costs each request and each event of a stream, before a worker that takes no time.

Worker and clients share a core, the router has the other to itself; the direct way and the way
through the router take turns. A peer's router joins in where its command is given
(`--peer "COMMAND {port} {worker}"`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from processes import cpu_seconds
from results import Case, Report
from servers import free_port
from trivial_worker import EVENTS, MODEL

ADDED_MS_GOAL: Final = 1.0
REQUESTS_GOAL: Final = 1500.0
EVENTS_GOAL: Final = 20_000.0
CLIENTS: Final = 16
STREAMS: Final = 8
READY_S: Final = 30.0
WORKER_CORE, ROUTER_CORE = 0, 1
_ASKED: Final = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many (5)")
    parser.add_argument(
        "--requests", type=int, default=2000, help="of a round, of each kind (2000)"
    )
    parser.add_argument("--peer", help="command of another router, with {port} and {worker} in it")


def measure(options: argparse.Namespace) -> Report:
    """Direct, through ours and through the peer's, round by round."""
    with ExitStack() as running:
        worker = running.enter_context(_worker())
        ways = {"direct": Way(worker)}
        ours = f"{sys.executable} -m omni_router --port {{port}} --worker {{worker}}"
        ways["ours"] = running.enter_context(_router(ours, worker))
        if options.peer:
            ways["peer"] = running.enter_context(_router(options.peer, worker))
        _on_core(WORKER_CORE)
        for _ in range(options.rounds):
            for way in ways.values():
                asyncio.run(way.measure(options.requests))
    return Report(cases=tuple(_cases(ways)), notes=_notes(ways))


@dataclass(slots=True)
class Way:
    """To the worker, by a port of this machine."""

    port: int
    pid: int | None = None
    """Of the router on the way."""
    latencies_ms: list[float] = field(default_factory=list)
    """The median of each round, one request in flight."""
    requests_per_s: list[float] = field(default_factory=list)
    events_per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """Of the router, a request of many in flight."""

    async def measure(self, requests: int) -> None:
        """One round."""
        self.latencies_ms.append(1e3 * median(await self._one_by_one(requests)))
        before_s, began_s = self._cpu_s(), time.perf_counter()
        each = requests // CLIENTS
        await asyncio.gather(*(self._one_by_one(each) for _ in range(CLIENTS)))
        self.requests_per_s.append(each * CLIENTS / (time.perf_counter() - began_s))
        self.cpu_ms.append(1e3 * (self._cpu_s() - before_s) / (each * CLIENTS))
        began_s = time.perf_counter()
        replies = await asyncio.gather(*(self._stream() for _ in range(STREAMS)))
        self.events_per_s.append(STREAMS * EVENTS / (time.perf_counter() - began_s))
        if any(_unchunked(reply).count(b"data: ") != EVENTS for reply in replies):
            raise RuntimeError(f"port {self.port} did not send {EVENTS} events")

    def _cpu_s(self) -> float:
        return 0.0 if self.pid is None else cpu_seconds(self.pid)

    async def _one_by_one(self, count: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        request, seconds = _request(stream=False), []
        for _ in range(count):
            began_s = time.perf_counter()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(f"port {self.port} says {head.decode()}")
            length = head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
            if length:
                await reader.readexactly(int(length))
            else:
                await reader.readuntil(b"0\r\n\r\n")
            seconds.append(time.perf_counter() - began_s)
        writer.close()
        return seconds

    async def _stream(self) -> bytes:
        """The reply as it comes; it is looked at once the clock has stopped."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_request(stream=True))
        await reader.readuntil(b"\r\n\r\n")
        reply = bytearray()
        while not reply.endswith(b"\r\n0\r\n\r\n"):
            piece = await reader.read(2**16)
            if not piece:
                raise RuntimeError(f"port {self.port} broke off after {len(reply)} bytes")
            reply += piece
        writer.close()
        return bytes(reply)


def _unchunked(reply: bytes) -> bytes:
    """Without the marks of chunked transfer coding, which may stand within an event."""
    pieces, rest = [], reply
    while size := int((line := rest.partition(b"\r\n"))[0], 16):
        pieces.append(line[2][:size])
        rest = line[2][size + 2 :]
    return b"".join(pieces)


def _request(*, stream: bool) -> bytes:
    body = json.dumps({**_ASKED, "stream": stream}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: 127.0.0.1"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def _worker() -> Iterator[int]:
    script = Path(__file__).with_name("trivial_worker.py")
    with _process([sys.executable, str(script)], WORKER_CORE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _router(command: str, worker: int) -> Iterator[Way]:
    port = free_port()
    filled = command.format(port=port, worker=f"http://127.0.0.1:{worker}")
    with _process(shlex.split(filled), ROUTER_CORE, stdout=subprocess.DEVNULL) as process:
        _wait_until_ready(port, process)
        yield Way(port, process.pid)


@contextmanager
def _process(command: list[str], core: int, *, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdout=stdout, stderr=subprocess.DEVNULL, preexec_fn=_pinned(core)
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _pinned(core: int) -> Callable[[], None]:
    return lambda: _on_core(core)


def _on_core(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(_ASKED).encode(),
        {"Content-Type": "application/json"},
    )
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            urllib.request.urlopen(request, timeout=READY_S).read()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the router did not get ready: {process.args!r}")


def _cases(ways: dict[str, Way]) -> Iterator[Case]:
    direct, ours, peer = ways["direct"], ways["ours"], ways.get("peer")

    def added(way: Way) -> list[float]:
        pairs = zip(way.latencies_ms, direct.latencies_ms, strict=True)
        return [through - straight for through, straight in pairs]

    yield Case(
        case="added to a request, 1 in flight",
        unit="ms, p50",
        ours=median(added(ours)),
        low=min(added(ours)),
        high=max(added(ours)),
        goal=ADDED_MS_GOAL,
        better="less",
    )
    rates = (
        (f"small JSON, {CLIENTS} in flight", "requests/s", REQUESTS_GOAL, "requests_per_s"),
        (f"{STREAMS} streams", "events/s", EVENTS_GOAL, "events_per_s"),
    )
    for name, unit, goal, kind in rates:
        found: list[float] = getattr(ours, kind)
        yield Case(
            case=name, unit=unit, ours=median(found), low=min(found), high=max(found), goal=goal
        )
        straight = median(getattr(direct, kind))
        yield Case(
            case=f"{name}, beside the direct way",
            unit=unit,
            ours=median(found),
            other=straight,
            other_name="direct",
        )
    yield from _beside(ours, peer, added)


def _beside(ours: Way, peer: Way | None, added: Callable[[Way], list[float]]) -> Iterator[Case]:
    if peer is None:
        return
    yield Case(
        case="added to a request, 1 in flight, beside the peer",
        unit="ms, p50",
        ours=median(added(ours)),
        other=median(added(peer)),
        other_name="peer's router",
        better="less",
    )
    for unit, kind in (("requests/s", "requests_per_s"), ("events/s", "events_per_s")):
        yield Case(
            case=f"{unit}, beside the peer",
            unit=unit,
            ours=median(getattr(ours, kind)),
            other=median(getattr(peer, kind)),
            other_name="peer's router",
        )


def _notes(ways: dict[str, Way]) -> str:
    ours = ways["ours"]
    assert ours.pid is not None
    return f"CPU of the router: {median(ours.cpu_ms):.2f} ms a request."
