"""What a process held in shared memory, or lent, when it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omni_core.addresses import segments
from omni_core.errors import StageDiedError
from omni_core.pipeline import Pipeline
from omni_core.testing import echo
from omni_core.types import Message, Request, RequestParams, TextDelta, TextPart

BACK_S = 20.0


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[Pipeline]:
    model = echo.write_checkpoint(tmp_path)
    loaded = Pipeline.load(model, plugins=echo.plugins(), device="cpu", layout="per-stage")
    async with loaded as running:
        yield running


async def ask(pipeline: Pipeline, text: str) -> str:
    message = Message(role="user", content=(TextPart(text=text),))
    request = Request(messages=(message,), params=RequestParams(modalities=("text",)))
    return "".join([e.text async for e in pipeline.generate(request) if isinstance(e, TextDelta)])


async def hold_a_tensor(pipeline: Pipeline) -> asyncio.Task[str]:
    """A request for which the writer holds what intake lent it."""
    asking = asyncio.create_task(ask(pipeline, "big hang"))
    while not (await pipeline.stats())["writer"]["running"]:
        assert not asking.done(), asking
    assert await slots_used(pipeline, "intake") > 0
    return asking


async def slots_used(pipeline: Pipeline, stage: str) -> float:
    relays = await pipeline.relay_stats()
    [stats] = [stats for process, stats in relays.items() if process.startswith(stage)]
    return stats["slots_used"]


async def kill(pipeline: Pipeline, stage: str) -> None:
    """Kill the process of a stage and wait until another has taken its place."""
    before = pipeline.health().stages[stage]
    os.kill(before.pid, signal.SIGKILL)
    deadline = time.monotonic() + BACK_S
    while (health := pipeline.health()).stages[stage].pid == before.pid or health.status != "ready":
        assert time.monotonic() < deadline, health
        await asyncio.sleep(0.005)


async def test_a_dead_reader_gives_back_what_it_held(pipeline: Pipeline) -> None:
    asking = await hold_a_tensor(pipeline)
    await kill(pipeline, "writer")
    with pytest.raises(StageDiedError):
        await asking
    assert await slots_used(pipeline, "intake") == 0
    assert await ask(pipeline, "big words") == "big words "


async def test_a_dead_writer_leaves_no_file_and_its_reader_goes_on(pipeline: Pipeline) -> None:
    asking = await hold_a_tensor(pipeline)
    await kill(pipeline, "intake")
    with pytest.raises(StageDiedError):
        await asking
    assert await ask(pipeline, "big words") == "big words "
    runtime = pipeline._runtime
    assert runtime is not None
    pids = {path.name.rpartition("@")[2].partition(".")[0] for path in _files(runtime.run_dir)}
    stages = pipeline.health().stages.values()
    assert pids == {str(pid) for pid in (os.getpid(), *(stage.pid for stage in stages))}


def _files(run_dir: Path) -> list[Path]:
    return list(segments(run_dir).iterdir())
