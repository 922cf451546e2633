"""The parity cases with the Thinker on one engine and the Talker on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asking import check, counters, request_for, run
from cases import CASES
from omni_core.pipeline import Pipeline

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.sglang]

STAGES = ("thinker", "talker_ar")


@pytest_asyncio.fixture(params=STAGES, scope="module", loop_scope="module")
async def pipeline(request: pytest.FixtureRequest, tiny_checkpoint: str) -> AsyncIterator[Pipeline]:
    """One of the two stages is on SGLang."""
    loaded = Pipeline.load(
        tiny_checkpoint,
        device="cpu",
        compile="off",
        ar_engine="torch",
        overrides={f"{request.param}.ar_engine": "sglang"},
    )
    async with loaded as running:
        yield running


async def test_one_at_a_time_and_all_at_once(pipeline: Pipeline) -> None:
    for case in CASES:
        check(case, await run(pipeline, request_for(case)))
    replies = await asyncio.gather(*(run(pipeline, request_for(case)) for case in CASES))
    for case, reply in zip(CASES, replies, strict=True):
        check(case, reply)
    after = await counters(pipeline)
    assert all(after[f"{stage}.tokens"] > after[f"{stage}.steps"] for stage in STAGES)
