"""Stages whose processes lend to each other in a circle never wait for themselves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from omni_core.pipeline import Pipeline
from omni_core.testing import circle
from omni_core.types import Message, Request, RequestParams, TextDelta, TextPart

REQUESTS = 40


async def value_of(pipeline: Pipeline, number: int) -> int:
    message = Message(role="user", content=(TextPart(text="x" * number),))
    request = Request(messages=(message,), params=RequestParams(modalities=("text",)))
    said = [e.text async for e in pipeline.generate(request) if isinstance(e, TextDelta)]
    return int("".join(said))


async def test_a_circle_of_tiny_pools_carries_forty_times_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["CircleForTests"]}))
    pipeline = Pipeline.load(str(tmp_path), plugins=circle.plugins(), device="cpu")
    async with pipeline:
        values = await asyncio.gather(*(value_of(pipeline, n) for n in range(REQUESTS)))
        assert values == [number + 3 for number in range(REQUESTS)]
