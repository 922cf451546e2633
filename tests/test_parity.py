"""The served pipeline against transformers: same text ids, same codes, same waveform.

Every test runs in both layouts: few processes, as on a CPU by default, and one for each stage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest
import pytest_asyncio

from asking import Reply, check, check_speech, reading_for, request_for, run, with_params
from cases import CASES, READINGS, Reading
from expected import load_reference
from omni_core.errors import ContextLengthError, RequestError
from omni_core.pipeline import Pipeline
from omni_core.types import (
    AudioDelta,
    CodecDelta,
    Event,
    Request,
    SamplingParams,
    TextDelta,
    Usage,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

BY_NAME = {case.name: case for case in CASES}
ASKED = request_for(BY_NAME["text"])
COMPUTED = ("steps", "tokens")
"""Counters of an engine."""


@pytest_asyncio.fixture(params=["auto", "per-stage"], scope="module", loop_scope="module")
async def pipeline(
    request: pytest.FixtureRequest, tiny_checkpoint: str, ar_engine: str
) -> AsyncIterator[Pipeline]:
    loaded = Pipeline.load(
        tiny_checkpoint, device="cpu", layout=request.param, compile="off", ar_engine=ar_engine
    )
    async with loaded as running:
        yield running


@pytest.mark.parametrize("name", BY_NAME)
async def test_one_at_a_time(pipeline: Pipeline, name: str) -> None:
    check(BY_NAME[name], await run(pipeline, request_for(BY_NAME[name])))


async def test_all_at_once(pipeline: Pipeline) -> None:
    assert len(CASES) >= 8
    replies = await asyncio.gather(*(run(pipeline, request_for(case)) for case in CASES))
    for case, reply in zip(CASES, replies, strict=True):
        check(case, reply)


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
async def test_a_text_is_read_aloud_without_a_step_of_the_thinker(
    pipeline: Pipeline, reading: Reading
) -> None:
    before = await pipeline.stats()
    reply = await run(pipeline, reading_for(reading))
    check_speech(reading, reply)
    after = await pipeline.stats()
    tokens = len(load_reference(reading.name).text_ids) - 1
    assert reply.finished.usage == Usage(prompt_tokens=tokens, audio_tokens=reply.codes.shape[1])
    assert reply.finished.finish_reason == "stop"
    assert reply.of(TextDelta) == []
    assert {k: after["thinker"][k] for k in COMPUTED} == {k: before["thinker"][k] for k in COMPUTED}
    for stage in ("image_encoder", "audio_encoder", "decode"):
        assert after[stage] == before[stage]


async def test_readings_and_replies_share_a_batch(pipeline: Pipeline) -> None:
    asked = [request_for(BY_NAME["text"]), *map(reading_for, READINGS), request_for(BY_NAME["all"])]
    text, *readings, everything = await asyncio.gather(*(run(pipeline, one) for one in asked))
    check(BY_NAME["text"], text)
    check(BY_NAME["all"], everything)
    for reading, reply in zip(READINGS, readings, strict=True):
        check_speech(reading, reply)


async def test_a_reading_that_cannot_be_is_refused_by_name(pipeline: Pipeline) -> None:
    request = reading_for(READINGS[0])
    for text, kind in (("", RequestError), ("word " * 40_000, ContextLengthError)):
        with pytest.raises(kind) as refused:
            await run(pipeline, Request(read_aloud=text, params=request.params))
        assert refused.value.param == "read_aloud"
    check_speech(READINGS[0], await run(pipeline, request))


async def test_a_reply_of_only_the_end_token_is_silent(pipeline: Pipeline) -> None:
    reply = await run(pipeline, request_for(BY_NAME["only_end"]))
    assert "".join(event.text for event in reply.of(TextDelta)) == ""
    assert reply.of(AudioDelta) == []
    assert reply.of(CodecDelta) == []


async def test_audio_alone_needs_no_decode(pipeline: Pipeline) -> None:
    before = (await pipeline.stats())["decode"]["requests"]
    case = BY_NAME["audio"]
    reply = await run(pipeline, with_params(request_for(case), modalities=("audio",)))
    expected = load_reference("audio")
    assert reply.of(TextDelta) == []
    np.testing.assert_array_equal(reply.codes, expected.codes)
    usage = reply.events[-1].usage
    assert (usage.text_tokens, usage.audio_tokens) == (
        expected.text_ids.size,
        expected.codes.shape[1],
    )
    assert usage.prompt_tokens > usage.prompt_audio_tokens > 0
    assert (await pipeline.stats())["decode"]["requests"] == before


async def test_streaming_is_real(pipeline: Pipeline) -> None:
    """The first text and the first audio leave long before the text is complete."""
    long = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True)
    heard, speaks = Reply(), False
    async with aclosing(pipeline.generate(with_params(ASKED, sampling=long))) as events:
        async for event in events:
            heard.events.append(event)
            speaks = speaks or isinstance(event, AudioDelta)
            if speaks and len(heard.text_ids):  # either may be first: they are of two processes
                break
    assert speaks
    assert len(heard.text_ids) < 4000 / 4


async def test_audio_comes_in_many_pieces(pipeline: Pipeline) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    reply = await run(pipeline, with_params(ASKED, sampling=long))
    assert len(reply.text_ids) == 300
    sizes = [event.samples.size for event in reply.of(AudioDelta)]
    assert max(sizes) <= sum(sizes) / 4


async def test_only_what_is_asked_for_runs(pipeline: Pipeline) -> None:
    before = await pipeline.stats()
    request = with_params(request_for(BY_NAME["audio"]), modalities=("text",), return_codec=False)
    reply = await run(pipeline, request)
    after = await pipeline.stats()
    assert reply.text_ids
    visits = {name: after[name]["requests"] - before[name]["requests"] for name in after}
    assert visits == {
        "preprocessing": 1,
        "image_encoder": 0,
        "audio_encoder": 1,
        "mm_aggregate": 1,
        "thinker": 1,
        "decode": 1,
        "talker_ar": 0,
        "code2wav": 0,
    }
    assert after["talker_ar"] == before["talker_ar"]
    assert after["code2wav"] == before["code2wav"]


async def test_the_timeline_names_every_stage_visited(pipeline: Pipeline) -> None:
    reply = await run(pipeline, request_for(BY_NAME["image"]))
    stages = {span.stage for span in reply.events[-1].timeline}
    assert stages == set(pipeline.stages) - {"audio_encoder"}


@pytest.mark.parametrize("after", [TextDelta, AudioDelta])
async def test_leaving_midway_frees_everything_within_a_second(
    pipeline: Pipeline, after: type[Event]
) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True)
    base = with_params(request_for(BY_NAME["all"]), sampling=long)
    request = Request(messages=base.messages, params=base.params, request_id="the-same")
    stream = pipeline.generate(request)
    async for event in stream:
        if isinstance(event, after):
            break
    assert (await pipeline.stats())["thinker"]["kv_pages_used"] > 0
    await stream.aclose()
    deadline = time.monotonic() + 1.0
    while held := await holdings(pipeline):
        assert time.monotonic() < deadline, held
    check(BY_NAME["text"], await run(pipeline, request_for(BY_NAME["text"], request_id="the-same")))


async def holdings(pipeline: Pipeline) -> dict[str, float]:
    """Everything any queue or allocator still holds."""
    gauges = ("held", "waiting", "running", "kv_pages_used")
    return {
        f"{stage}.{gauge}": values[gauge]
        for stage, values in (await pipeline.stats()).items()
        for gauge in gauges
        if values.get(gauge)
    }
