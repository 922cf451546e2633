"""Three stages that do nothing, in three processes: what a request costs between stages.

Beside it the raw limit in the same minutes: a bare pyzmq ring of as many processes and hops.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from omni_core.pipeline import Pipeline
from omni_core.types import AudioDelta
from passing import ask, load
from results import Case, Report
from ring import Ring

IN_FLIGHT: Final = 64
STREAMS: Final = 16
CHUNKS_EACH: Final = 100
SMALL_BYTES: Final = 128
RING: Final = "pyzmq ring"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many (default 5)")
    parser.add_argument("--requests", type=int, default=4000, help="per round (default 4000)")


def measure(options: argparse.Namespace) -> Report:
    """Ours and the ring in turn, round by round."""
    with tempfile.TemporaryDirectory() as workshop:
        found = asyncio.run(_rounds(Path(workshop), options.rounds, options.requests))
    return Report(cases=found.cases())


@dataclass(slots=True)
class Found:
    """What was measured, a number for each round."""

    round_trip_ms: list[float] = field(default_factory=list)
    ring_ms: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    ring_per_s: list[float] = field(default_factory=list)
    chunks_per_s: list[float] = field(default_factory=list)
    first_chunk_ms: list[float] = field(default_factory=list)
    together_per_s: list[float] = field(default_factory=list)

    def cases(self) -> tuple[Case, ...]:
        """The rows of the table."""
        trip, together = median(self.round_trip_ms), median(self.together_per_s)
        many, flight = median(self.requests_per_s), f"{IN_FLIGHT} in flight"
        return (
            Case(case="round trip", unit="ms", ours=trip, goal=1.5, better="less"),
            Case(
                case="round trip beside the ring",
                unit="ms",
                ours=trip,
                other=median(self.ring_ms),
                other_name=RING,
                goal=1 / 3,
                better="less",
            ),
            Case(case=flight, unit="requests/s", ours=many, goal=6000),
            Case(
                case=f"{flight} beside the ring",
                unit="requests/s",
                ours=many,
                other=median(self.ring_per_s),
                other_name=RING,
            ),
            Case(
                case=f"{SMALL_BYTES} B chunks, one stream",
                unit="chunks/s",
                ours=median(self.chunks_per_s),
                goal=30_000,
            ),
            Case(
                case=f"{STREAMS} streams x {CHUNKS_EACH} chunks: first chunk",
                unit="ms",
                ours=median(self.first_chunk_ms),
                goal=30,
                better="less",
            ),
            Case(case=f"one process, {flight}", unit="requests/s", ours=together, goal=15_000),
        )


async def _rounds(workshop: Path, rounds: int, requests: int) -> Found:
    found = Found()
    with Ring(workshop) as ring:
        async with load(workshop, apart=True) as apart, load(workshop, apart=False) as together:
            for number in range(rounds + 1):  # the first one warms up
                if number == 1:
                    found = Found()
                found.ring_ms.append(median(ring.round_trip_s() for _ in range(200)) * 1e3)
                found.round_trip_ms.append(await round_trip_ms(apart))
                rate = ring.rounds_per_s(in_flight=IN_FLIGHT, rounds=requests)
                found.ring_per_s.append(rate)
                found.requests_per_s.append(await requests_per_s(apart, requests))
                found.together_per_s.append(await requests_per_s(together, requests))
                rate = await chunks_per_s(apart, chunk_bytes=SMALL_BYTES, chunks=5 * requests)
                found.chunks_per_s.append(rate)
                found.first_chunk_ms.append(await first_chunk_ms(apart))
    return found


async def round_trip_ms(pipeline: Pipeline, *, tensor_bytes: int = 0, times: int = 200) -> float:
    """From the call to the end of the reply; the median."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        async for _ in pipeline.batches(ask(tensor_bytes=tensor_bytes)):
            pass
        taken.append(time.perf_counter() - began)
    return median(taken) * 1e3


async def requests_per_s(pipeline: Pipeline, requests: int) -> float:
    """With `IN_FLIGHT` clients, each of which asks again when it is answered."""

    async def client() -> None:
        for _ in range(requests // IN_FLIGHT):
            async for _ in pipeline.batches(ask()):
                pass

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
    return requests // IN_FLIGHT * IN_FLIGHT / (time.perf_counter() - began)


async def chunks_per_s(pipeline: Pipeline, *, chunk_bytes: int, chunks: int) -> float:
    """Of one stream, as its client counts them."""
    began, arrived = time.perf_counter(), 0
    async for events in pipeline.batches(ask(chunks=chunks, chunk_bytes=chunk_bytes)):
        arrived += sum(isinstance(event, AudioDelta) for event in events)
    assert arrived == chunks
    return chunks / (time.perf_counter() - began)


async def first_chunk_ms(pipeline: Pipeline) -> float:
    """Of streams that begin together, each of many chunks; the median."""
    began, firsts = time.perf_counter(), []

    async def client() -> None:
        first = True
        async for _ in pipeline.batches(ask(chunks=CHUNKS_EACH, chunk_bytes=SMALL_BYTES)):
            if first:
                firsts.append(time.perf_counter() - began)
            first = False

    await asyncio.gather(*(client() for _ in range(STREAMS)))
    return median(firsts) * 1e3
