"""The same media again, through stages in processes of their own: same reply, no second look."""

from __future__ import annotations

import asyncio

import pytest

from media import frames, matroska, picture, png, sweep, wav
from omni_core.config import Layout
from omni_core.pipeline import Pipeline
from omni_core.types import (
    Finished,
    MediaKind,
    MediaOptions,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)

FILES: list[tuple[MediaKind, bytes]] = [
    ("image", png(picture())),
    ("audio", wav(sweep())),
    ("video", matroska(frames(), sweep(3))),
]
ENCODERS = ("image_encoder", "audio_encoder")
ITEMS = 2
"""Of each encoder: a video with sound is an item of both."""


async def reply(pipeline: Pipeline) -> tuple[tuple[int, ...], int]:
    """Token ids of the answer, and the length of the prompt."""
    parts = [MediaPart(kind=kind, data=data) for kind, data in FILES]
    request = Request(
        messages=(Message(role="user", content=(*parts, TextPart(text="What is this?"))),),
        params=RequestParams(
            sampling=SamplingParams(temperature=0.0, max_tokens=8),
            media=MediaOptions(use_audio_in_video=True),
        ),
    )
    ids: tuple[int, ...] = ()
    async for event in pipeline.generate(request):
        match event:
            case TextDelta():
                ids += event.token_ids
            case Finished():
                return ids, event.usage.prompt_tokens
            case _:
                pass
    raise AssertionError("no end")


@pytest.mark.parametrize(
    ("layout", "kept"), [("per-stage", 64), ("auto", 0)], ids=["kept", "not kept"]
)
async def test_media_sent_again_are_not_looked_at_again(
    tiny_checkpoint: str, layout: Layout, kept: int
) -> None:
    """Where encoders keep nothing, the reply still is the same: they read the files."""
    loaded = Pipeline.load(
        tiny_checkpoint,
        variant="text",
        device="cpu",
        layout=layout,
        overrides={f"{name}.cache_entries": str(kept) for name in ENCODERS},
    )
    async with loaded as pipeline:
        first = await reply(pipeline)
        again = await asyncio.gather(*(reply(pipeline) for _ in range(3)))
        stats = await pipeline.stats()
    assert again == [first] * 3
    assert first[0]
    seen = stats["preprocessing"]
    assert (seen["cache_misses"], seen["cache_hits"]) == (len(FILES), 3 * len(FILES))
    for name in ENCODERS:
        encoder = stats[name]
        if kept:
            assert (encoder["cache_misses"], encoder["read_again"]) == (ITEMS, 0)
            assert encoder["cache_hits"] + encoder["inflight_joined"] == 3 * ITEMS
        else:
            assert encoder["cache_hits"] == 0
            assert ITEMS <= encoder["read_again"] == encoder["cache_misses"] - ITEMS
