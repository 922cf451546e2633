"""The parity cases when processes come twice, and when they die in between.

Whoever computes a reply, its ids, codes and waveform stay those of transformers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asking import check, request_for, run
from cases import CASES
from omni_core.pipeline import Health, Pipeline

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_S = 60.0
REPLICATED = "talker_ar"
VICTIMS = [
    pytest.param(name, marks=() if name == "thinker" else pytest.mark.matrix)
    for name in ("preprocessing", "thinker", "talker_ar", "code2wav")
]
"""One stage of each process."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(tiny_checkpoint: str, ar_engine: str) -> AsyncIterator[Pipeline]:
    loaded = Pipeline.load(
        tiny_checkpoint,
        device="cpu",
        compile="off",
        ar_engine=ar_engine,
        overrides={f"{REPLICATED}.replicas": "2"},
    )
    async with loaded as running:
        yield running


async def check_all(pipeline: Pipeline) -> None:
    """Every case, all at once."""
    replies = await asyncio.gather(*(run(pipeline, request_for(case)) for case in CASES))
    for case, reply in zip(CASES, replies, strict=True):
        check(case, reply)


async def test_replicas_answer_alike(pipeline: Pipeline) -> None:
    await check_all(pipeline)
    stats = await pipeline.stats()
    served = [stats[name]["requests"] for name in (REPLICATED, f"{REPLICATED}.1")]
    assert min(served) > len(CASES) // 4, served


def _is_back(health: Health, stage: str, restarts: int) -> bool:
    return health.status == "ready" and health.stages[stage].restarts == restarts


@pytest.mark.parametrize("stage", VICTIMS)
async def test_a_successor_answers_alike(pipeline: Pipeline, stage: str) -> None:
    before = pipeline.health().stages[stage]
    os.kill(before.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    while not _is_back(pipeline.health(), stage, before.restarts + 1):
        assert time.monotonic() - killed_s < PATIENCE_S, pipeline.health()
        await asyncio.sleep(0.01)
    await check_all(pipeline)
