"""WS /v1/realtime: how soon a spoken turn is answered, interruptions, many sessions, memory.

The server is in this process and its stages are where they always are, the client is a process of
its own; both read the same clock. So each part of the time from the end of speech to the first
sound is told apart: what turn detection waits for, what the server adds until the pipeline has the
request, and the pipeline's own time. Needs the `realtime` extra. Nobody needs to speak: the speech
model takes `omni_core.testing.voice` for somebody who does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from checkpoint import build_endless
from inside import listening
from omni_core.coordinator.aborts import Observer
from omni_core.pipeline import Pipeline
from omni_core.types import AudioDelta, Event, Modality, Request
from omni_server.app import create_app
from omni_server.realtime.vad import RATE, WINDOW, SileroModel, missing
from omni_server.settings import Settings
from processes import pss_bytes
from results import Case, Report
from scripted import Scripted
from talk import Plan

TALK: Final = Path(__file__).with_name("talk.py")
MODEL: Final = "measured"
SILENCE_MS: Final = 500.0
"""What server_vad waits for."""
GOAL_OVERHEAD_MS: Final = 20.0
GOAL_CANCELLED_MS: Final = 100.0
GOAL_LAG_MS: Final = 100.0
"""Five chunks of 20 ms."""
GOAL_GROWTH_MB: Final = 4.0
GOAL_SPEED: Final = 50.0
HOUR_S: Final = 3600.0
BURSTS_S: Final = 2400.0
"""Beyond what a conversation holds, twenty minutes of sound."""
BURST_S: Final = 55.0
"""Of speech in each minute."""
PARTS: Final = ("turns", "interruptions", "crowd", "memory")
WATCH_S: Final = 0.1
MB: Final = 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tries", type=int, default=20, help="turns and interruptions (20)")
    parser.add_argument("--sessions", type=int, default=32, help="at once (default 32)")
    parser.add_argument("--seconds", type=float, default=20.0, help="that those last (20)")
    parser.add_argument("--chunk-ms", type=int, default=20, help="of sound in an event (20)")


def measure(options: argparse.Namespace) -> Report:
    """The parts that are asked for, each with a fresh server."""
    if (reason := missing()) is not None:
        raise SystemExit(f"no turn can be found here: {reason}")
    return Report(cases=tuple(asyncio.run(_measure(options))))


async def _measure(options: argparse.Namespace) -> list[Case]:
    cases: list[Case] = []
    if set(options.parts) - {"memory"}:
        with tempfile.TemporaryDirectory() as workshop:
            checkpoint = build_endless(Path(workshop) / "endless")
            watched = Watched.load(checkpoint, device="cpu", compile="off")
            async with Stand(watched).opened() as stand, watched:
                if "turns" in options.parts:
                    cases += await _turns(stand, watched, options)
                if "interruptions" in options.parts:
                    cases += await _interruptions(stand, watched, options)
                if "crowd" in options.parts:
                    cases += [*_detection(), *await _crowd(stand, options)]
    if "memory" in options.parts:
        async with Stand(Scripted()).opened() as stand:
            cases += await _memory(stand)
    return cases


@dataclass(slots=True)
class Seen:
    """One request at the pipeline."""

    submitted: float
    first_audio: float = 0.0
    released: float = 0.0
    """When no stage held anything of it any more, if it was aborted."""


class Watched(Pipeline):
    """A pipeline that writes down when requests come, speak and are let go of."""

    seen: list[Seen]

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """See `Pipeline.batches`."""
        seen = Seen(time.monotonic())
        self.seen.append(seen)
        async with aclosing(super().batches(request)) as batches:
            async for events in batches:
                if not seen.first_audio and any(isinstance(e, AudioDelta) for e in events):
                    seen.first_audio = time.monotonic()
                yield events


@dataclass(slots=True)
class Releases:
    """An observer that tells another one all, and writes down when the last stage has let go."""

    told: Observer
    pipeline: Watched

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        """See `Observer.admitted`."""
        self.told.admitted(modalities, waited_s)

    def refused(self, reason: str) -> None:
        """See `Observer.refused`."""
        self.told.refused(reason)

    def aborted(self, reason: str) -> None:
        """See `Observer.aborted`."""
        self.told.aborted(reason)

    def released(self, stage: str, after_s: float) -> None:
        """See `Observer.released`."""
        self.told.released(stage, after_s)
        if not self.pipeline.occupancy().aborting and self.pipeline.seen:
            self.pipeline.seen[-1].released = time.monotonic()


@dataclass(slots=True)
class Stand:
    """A server in this process, and clients of it in another."""

    pipeline: Pipeline
    _port: int = field(init=False)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Stand]:
        """While it listens."""
        app = create_app(self.pipeline, Settings(served_model_name=MODEL))
        if isinstance(self.pipeline, Watched):
            self.pipeline.seen = []
            self.pipeline.observer = Releases(self.pipeline.observer, self.pipeline)
        async with listening(app) as self._port:
            yield self

    async def talk(self, kind: Any, **plan: Any) -> Any:
        """Have a client do this."""
        print(f"{kind} {plan}", file=sys.stderr)
        line = json.dumps(asdict(Plan(port=self._port, model=MODEL, kind=kind, **plan)))
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(TALK), line, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await client.communicate()
        if client.returncode:
            raise SystemExit(f"the client of {kind!r} failed")
        return json.loads(told)


async def _turns(stand: Stand, watched: Watched, options: argparse.Namespace) -> list[Case]:
    """Spoken turns; then turns ended by the client and chats, by turns."""
    await stand.talk("turns", tries=2, first=10_000)  # warms up
    n_seen = len(watched.seen)
    found = await stand.talk("turns", tries=options.tries, chunk_ms=options.chunk_ms)
    spoken = list(zip(found, watched.seen[n_seen:], strict=True))
    asked: dict[str, list[tuple[dict[str, float], Seen]]] = {"manual": [], "chat": []}
    rounds = 4
    for number in range(rounds + 1):  # the first one warms up
        for kind, all_found in asked.items():
            first = 1_000 * (number + 1) + 500 * (kind == "chat")
            n_seen, tries = len(watched.seen), max(1, options.tries // rounds)
            found = await stand.talk(kind, tries=tries, first=first)
            if number:
                all_found += zip(found, watched.seen[n_seen:], strict=True)
    waited = [t["ended"] - t["spoken"] for t, _ in spoken]
    return [
        _case("end of speech to first audio", [t["heard"] - t["spoken"] for t, _ in spoken]),
        _case("of it: until the chunk that ends the turn", waited),
        _case("beyond silence_duration_ms", [one - SILENCE_MS / 1e3 for one in waited]),
        *_shares("a turn of server_vad", spoken, GOAL_OVERHEAD_MS),
        *_shares("a turn that is committed", asked["manual"], GOAL_OVERHEAD_MS),
        *_shares("a chat over HTTP", asked["chat"], None),
    ]


def _shares(
    what: str, tries: Sequence[tuple[dict[str, float], Seen]], goal_ms: float | None
) -> list[Case]:
    """What the time from a turn's end to its first audio goes to."""
    before = [seen.submitted - told["ended"] for told, seen in tries]
    after = [told["heard"] - seen.first_audio for told, seen in tries]
    own = [seen.first_audio - seen.submitted for _, seen in tries]
    both = [one + other for one, other in zip(before, after, strict=True)]
    return [
        _case(f"{what}: until the pipeline has it", before),
        _case(f"{what}: the pipeline's first audio", own),
        _case(f"{what}: from there to the client", after),
        _case(f"{what}: overhead, before and after", both, goal_ms),
    ]


async def _interruptions(stand: Stand, watched: Watched, options: argparse.Namespace) -> list[Case]:
    """Replies that somebody speaks into."""
    await stand.talk("interruptions", tries=1, first=10_000)  # warms up
    n_seen = len(watched.seen)
    found = await stand.talk("interruptions", tries=options.tries, chunk_ms=options.chunk_ms)
    both = list(zip(found, watched.seen[n_seen:], strict=True))
    cancelled = [seen.released - told["shown"] for told, seen in both]
    return [
        _case("speech shown to cancelled in every stage", cancelled, GOAL_CANCELLED_MS),
        _case("speech shown to response.done", [told["over"] - told["shown"] for told, _ in both]),
        _case("speech begun to cancelled", [s.released - told["began"] for told, s in both]),
    ]


def _detection() -> list[Case]:
    """CPU time of turn detection alone."""
    stream, times = SileroModel().stream(), []
    window = np.zeros(WINDOW, np.float32)
    for number in range(1_000):
        began = time.thread_time()
        stream.probability(window)
        if number >= 100:
            times.append(time.thread_time() - began)
    return [_case(f"speech model, a window of {WINDOW * 1000 // RATE} ms, CPU", times)]


async def _crowd(stand: Stand, options: argparse.Namespace) -> list[Case]:
    """Many sessions at once: with turns that are only found, and with turns that are answered."""
    await stand.talk("crowd", sessions=2, seconds=3.0)  # warms up
    cases = []
    for what, answered in (("listening", False), ("answering", True)):
        cpu_s, began = time.process_time(), time.monotonic()
        async with _watched_memory() as sizes:
            found = await stand.talk(
                "crowd",
                sessions=options.sessions,
                seconds=options.seconds,
                chunk_ms=options.chunk_ms,
                answered=answered,
            )
        cpu_s, took_s = time.process_time() - cpu_s, time.monotonic() - began
        memory = (max(sizes) - sizes[0]) / options.sessions
        name = f"{options.sessions} sessions {what}"
        cases += _crowd_cases(name, found)
        chunks = sum(one["chunks"] for one in found)
        cases += [
            _case(f"{name}: server's CPU, a chunk of {options.chunk_ms} ms", [cpu_s / chunks]),
            _plain(f"{name}: server's share of a core", "", cpu_s / took_s),
            _plain(f"{name}: memory, each", "MB", memory / MB),
        ]
    return cases


def _crowd_cases(name: str, found: Sequence[dict[str, Any]]) -> list[Case]:
    """How far behind the server read, and who was heard."""
    lags = sorted(lag for one in found for lag in one["lags"])
    worst = max(median(one["lags"]) for one in found)
    percentile_99 = lags[int(len(lags) * 0.99)]
    heard = sum(one["noticed"] for one in found) / sum(one["spoken"] for one in found)
    return [
        _case(f"{name}: read behind", lags),
        _case(f"{name}: the same, 99th percentile", [percentile_99], GOAL_LAG_MS),
        _case(f"{name}: the same, median of the worst session", [worst], GOAL_LAG_MS),
        _case(f"{name}: client late by, at most", [max(one["sent_late"] for one in found)]),
        Case(case=f"{name}: turns noticed of those spoken", unit="", ours=heard, goal=1.0),
        _plain(f"{name}: events refused", "", sum(one["refused"] for one in found)),
    ]


async def _memory(stand: Stand) -> list[Case]:
    """Long sessions of silence and of speech, a minute at once, as fast as they are read."""
    hours = {
        "an hour of silence": (HOUR_S, 0.0, True),
        "40 minutes in bursts, answered": (BURSTS_S, BURST_S, True),
        "40 minutes in bursts, unanswered": (BURSTS_S, BURST_S, False),
    }
    cases = []
    await stand.talk("pour", seconds=120.0, spoken_s=BURST_S)  # warms up
    for name, (seconds, spoken_s, answered) in hours.items():
        async with _watched_memory() as sizes:
            told = await stand.talk("pour", seconds=seconds, spoken_s=spoken_s, answered=answered)
        quarter = len(sizes) // 4
        growth = max(sizes[-quarter:]) - max(sizes[-2 * quarter : -quarter])
        cases += [
            _plain(f"{name}: speed", "x", seconds / told["took_s"], GOAL_SPEED, better="more"),
            _plain(f"{name}: growth in its last quarter", "MB", growth / MB, GOAL_GROWTH_MB),
            _plain(f"{name}: memory at most", "MB", (max(sizes) - sizes[0]) / MB),
        ]
    return cases


@asynccontextmanager
async def _watched_memory() -> AsyncIterator[list[int]]:
    """Memory of this process again and again; grows."""
    sizes = [_memory_bytes()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            sizes.append(_memory_bytes())

    watching = asyncio.create_task(watch())
    try:
        yield sizes
    finally:
        watching.cancel()


def _memory_bytes() -> int:
    return pss_bytes(os.getpid())["anon"]


def _case(what: str, seconds: Sequence[float], goal_ms: float | None = None) -> Case:
    times = [one * 1e3 for one in seconds]
    spread = {"low": min(times), "high": max(times)} if len(times) > 1 else {}
    return Case(case=what, unit="ms", ours=median(times), goal=goal_ms, better="less", **spread)


def _plain(
    what: str, unit: str, ours: float, goal: float | None = None, better: Any = "less"
) -> Case:
    return Case(case=what, unit=unit, ours=ours, goal=goal, better=better)
