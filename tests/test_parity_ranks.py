"""The parity cases with a Thinker that is split over two processes; and when one of these dies.

Whoever computes a reply, its ids, codes and waveform stay those of transformers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from asking import check, request_for, run
from cases import CASES
from omni_core.pipeline import Pipeline

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.sglang]

PATIENCE_S = 120.0
STAGE = "thinker"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(tiny_checkpoint: str) -> AsyncIterator[Pipeline]:
    """Only the Thinker is on SGLang."""
    overrides = {"ar_engine": "sglang", "tp_size": "2", "process": "ranks"}
    loaded = Pipeline.load(
        tiny_checkpoint,
        device="cpu",
        compile="off",
        ar_engine="torch",
        overrides={f"{STAGE}.{field}": value for field, value in overrides.items()},
    )
    async with loaded as running:
        yield running


def followers(pid: int) -> list[int]:
    """Children of a process that are ranks of its model."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, command in commands.items() if b".follower" in command]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_all_at_once(pipeline: Pipeline) -> None:
    replies = await asyncio.gather(*(run(pipeline, request_for(case)) for case in CASES))
    for case, reply in zip(CASES, replies, strict=True):
        check(case, reply)


async def until_ready(pipeline: Pipeline, restarts: int) -> int:
    """The pid of the first rank, once it has been started again so many times."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        health = pipeline.health()
        stage = health.stages[STAGE]
        if health.status == "ready" and stage.restarts == restarts:
            return stage.pid
        assert time.monotonic() < deadline_s, health
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("restarts", "victim"), enumerate(("rank 1", "rank 0")))
async def test_no_rank_outlives_another(pipeline: Pipeline, restarts: int, victim: str) -> None:
    """What is left is started again as a whole."""
    first = await until_ready(pipeline, restarts)
    [second] = followers(first)
    os.kill(second if victim == "rank 1" else first, signal.SIGKILL)
    deadline_s = time.monotonic() + PATIENCE_S
    while not (is_gone(first) and is_gone(second)):
        assert time.monotonic() < deadline_s, pipeline.health()
        await asyncio.sleep(0.05)
    await until_ready(pipeline, restarts + 1)
