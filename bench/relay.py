"""Three stages that do nothing, in three processes: what tensors cost between stages.

Beside it the raw limit in the same minutes: copying the same bytes once for each hop.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from orchestration import chunks_per_s, round_trip_ms
from passing import load
from results import Case, Report

KIB: Final = 1024
MIB: Final = 1024 * KIB
TENSOR_BYTES: Final = 8 * MIB
TENSOR_HOPS: Final = 3
"""first, second, third, client."""
CHUNK_HOPS: Final = 2
"""second, third, client."""
MEMCPY: Final = "memcpy"
CHUNKS: Final[Mapping[int, tuple[str, float, int]]] = {
    64 * KIB: ("64 KiB chunks", 8_000, 4_000),
    MIB: ("1 MiB chunks", 1_000, 600),
}
"""{bytes: name, goal in chunks a second, how many a round}."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many (default 5)")


def measure(options: argparse.Namespace) -> Report:
    """Ours and memcpy in turn, round by round."""
    with tempfile.TemporaryDirectory() as workshop:
        return Report(cases=asyncio.run(_rounds(Path(workshop), options.rounds)))


async def _rounds(workshop: Path, rounds: int) -> tuple[Case, ...]:
    trips: list[tuple[float, float]] = []
    rates: dict[int, list[tuple[float, float]]] = {size: [] for size in CHUNKS}
    async with load(workshop, apart=True) as pipeline:
        for number in range(rounds + 1):  # the first one warms up
            trip = await round_trip_ms(pipeline, tensor_bytes=TENSOR_BYTES, times=30)
            trips.append((trip, copy_s(TENSOR_BYTES) * TENSOR_HOPS * 1e3))
            for size, (_, _, chunks) in CHUNKS.items():
                rate = await chunks_per_s(pipeline, chunk_bytes=size, chunks=chunks)
                rates[size].append((rate, 1 / (copy_s(size) * CHUNK_HOPS)))
            if number == 0:
                trips.clear()
                rates = {size: [] for size in CHUNKS}
    return (*_trip_cases(trips), *(case for size in CHUNKS for case in _cases(size, rates[size])))


def copy_s(size: int, times: int = 20) -> float:
    """Copying so many bytes, in this process; the median."""
    source, target, taken = np.ones(size, np.uint8), np.empty(size, np.uint8), []
    for _ in range(times):
        began = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - began)
    return median(taken)


def _trip_cases(trips: list[tuple[float, float]]) -> tuple[Case, Case]:
    ours, other = (median(values) for values in zip(*trips, strict=True))
    name = "round trip of 8 MiB"
    return (
        Case(case=name, unit="ms", ours=ours, goal=12, better="less"),
        Case(
            case=f"{name} beside {TENSOR_HOPS} copies",
            unit="ms",
            ours=ours,
            other=other,
            other_name=MEMCPY,
            better="less",
        ),
    )


def _cases(size: int, rates: list[tuple[float, float]]) -> tuple[Case, Case]:
    ours, other = (median(values) for values in zip(*rates, strict=True))
    name, goal, _ = CHUNKS[size]
    beside = f"{name} beside {CHUNK_HOPS} copies"
    return (
        Case(case=name, unit="chunks/s", ours=ours, goal=goal),
        Case(case=beside, unit="chunks/s", ours=ours, other=other, other_name=MEMCPY),
    )
