"""What HTTP costs over the Python API: the same pipeline asked in this process and by a client.

Server and pipeline are in this process, the client in another one. The numbers are CPU time of this
process, all its threads, so the client's share is not in them: what a request over HTTP takes less
what the same request through `Pipeline` takes, where the caller encodes and decodes audio with the
same functions as the server, codecs in a thread like it. A reply of one delta gives the cost of a
request, what a longer one takes beyond it, the cost of a chunk: a delta of the pipeline, which
comes and is sent alone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from checkpoint import build_endless
from inside import listening
from omni_core.pipeline import Pipeline
from omni_server.app import create_app
from omni_server.settings import Settings
from raw_client import Shot
from requests_both_ways import KINDS, MODEL, Kind
from results import Case, Report
from scripted import Scripted

RAW_CLIENT: Final = Path(__file__).with_name("raw_client.py")
GOAL_REQUEST_MS: Final = 1.5
GOAL_CHUNK_MS: Final = 0.15
PAUSE_S: Final = 0.001
"""Before a request in this process, which waits then, as it does for one over HTTP: what has waited
runs slower at first."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=7, help="medians are of so many (default 7)")
    parser.add_argument("--requests", type=int, default=40, help="short replies a round (40)")
    parser.add_argument("--deltas", type=int, default=100, help="of a long reply (default 100)")
    parser.add_argument("--no-tiny", action="store_true", help="the pipeline without stages alone")


def measure(options: argparse.Namespace) -> Report:
    """Every kind of request, in this process and over HTTP in turn, round by round."""
    cases = asyncio.run(_measure("no stages", Scripted(), options))
    if not options.no_tiny:
        with tempfile.TemporaryDirectory() as workshop:
            cases += asyncio.run(_measure_tiny(Path(workshop), options))
    return Report(cases=tuple(cases))


async def _measure_tiny(workshop: Path, options: argparse.Namespace) -> list[Case]:
    checkpoint = build_endless(workshop / "endless")
    async with Pipeline.load(checkpoint, device="cpu", compile="off") as pipeline:
        fewer = argparse.Namespace(**{**vars(options), "requests": max(1, options.requests // 8)})
        return await _measure("tiny model", pipeline, fewer)


async def _measure(name: str, pipeline: Pipeline, options: argparse.Namespace) -> list[Case]:
    found: dict[str, Found] = defaultdict(Found)
    long_ones = max(1, options.requests // 5)
    async with Doors(pipeline).opened() as doors:
        for number in range(options.rounds + 1):  # the first one warms up
            if number == 1:
                found.clear()
            for kind in KINDS:
                short = await doors.spent(kind, 1, options.requests)
                long = await doors.spent(kind, options.deltas, long_ones) if kind.chunks else None
                found[kind.name].add(short, long)
    return [case for kind in KINDS for case in found[kind.name].cases(name, kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """On requests of one kind and length, each."""

    here_ms: float
    """CPU time through the Python API."""
    http_ms: float
    added_ms: float
    """Time on the clock that HTTP adds, its client and the sockets included."""
    deltas: int


@dataclass(slots=True)
class Found:
    """What was measured of one kind, a number for each round."""

    request_ms: list[float] = field(default_factory=list)
    chunk_ms: list[float] = field(default_factory=list)
    added_ms: list[float] = field(default_factory=list)

    def add(self, short: Spent, long: Spent | None) -> None:
        """One round."""
        request_ms = short.http_ms - short.here_ms
        if long is not None:
            chunk_ms = (long.http_ms - long.here_ms - request_ms) / (long.deltas - short.deltas)
            self.chunk_ms.append(chunk_ms)
            request_ms -= chunk_ms * short.deltas
        self.request_ms.append(request_ms)
        self.added_ms.append(short.added_ms)

    def cases(self, pipeline: str, kind: Kind) -> list[Case]:
        """The rows of the table."""
        what = f"{pipeline}, {kind.name}"
        cases = [_case(f"{what}: a request", self.request_ms, GOAL_REQUEST_MS)]
        if self.chunk_ms:
            cases.append(_case(f"{what}: a chunk", self.chunk_ms, GOAL_CHUNK_MS))
        return [*cases, _case(f"{what}: on the clock", self.added_ms, None)]


def _case(what: str, rounds: list[float], goal: float | None) -> Case:
    return Case(
        case=what,
        unit="ms",
        ours=median(rounds),
        low=min(rounds),
        high=max(rounds),
        goal=goal,
        better="less",
    )


@dataclass(slots=True)
class Doors:
    """A pipeline that can be asked both ways."""

    pipeline: Pipeline
    _client: asyncio.subprocess.Process = field(init=False)
    _port: int = field(init=False)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Doors]:
        """With a server on a free port of the loopback interface, and its client."""
        app = create_app(self.pipeline, Settings(served_model_name=MODEL))
        async with listening(app) as self._port:
            pipe = asyncio.subprocess.PIPE
            self._client = await asyncio.create_subprocess_exec(
                sys.executable, str(RAW_CLIENT), str(self._port), stdin=pipe, stdout=pipe
            )
            try:
                yield self
            finally:
                self._client.kill()
                await self._client.wait()

    async def spent(self, kind: Kind, deltas: int, times: int) -> Spent:
        """The same requests both ways."""
        seconds, counted = [], 0
        cpu_s = time.process_time()
        for _ in range(times):
            await asyncio.sleep(PAUSE_S)
            began = time.perf_counter()
            counted = await kind.ask(self.pipeline, deltas)
            seconds.append(time.perf_counter() - began)
        here_s = time.process_time() - cpu_s
        cpu_s = time.process_time()
        over_http = await self._shoot(kind, kind.body(deltas), times)
        http_s = time.process_time() - cpu_s
        return Spent(
            here_ms=here_s / times * 1e3,
            http_ms=http_s / times * 1e3,
            added_ms=(median(over_http) - median(seconds)) * 1e3,
            deltas=counted,
        )

    async def _shoot(self, kind: Kind, body: bytes, times: int) -> list[float]:
        head = (
            f"POST {kind.path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: {kind.content_type}\r\n"
        )
        shot = Shot(head=head, body=base64.b64encode(body).decode(), times=times)
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(shot.line())
        line = await self._client.stdout.readline()
        if not line:
            raise SystemExit(f"the client of {kind.name!r} has ended")
        seconds: list[float] = json.loads(line)
        return seconds
