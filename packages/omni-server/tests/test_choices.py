"""Several choices of one request, and every field that the openai package can send."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import msgspec
import pytest
from openai.types.chat import (
    ChatCompletionStreamOptionsParam,
    completion_create_params,
)

from omni_core.errors import OverloadedError
from omni_core.types import Finished, TextDelta, Usage
from omni_server.schema.chat import ChatBody, StreamOptions
from omni_server.settings import Settings


def numbered(request: Any) -> list[Any]:
    """A reply that says its seed."""
    seed = request.params.sampling.seed
    usage = Usage(prompt_tokens=7, cached_tokens=seed, text_tokens=2, audio_tokens=1)
    words = [TextDelta(text="seed "), TextDelta(text=str(seed))]
    return [*words, Finished(finish_reason="stop", usage=usage)]


async def test_choices_differ_by_their_seeds(local: Any, pipeline: Any) -> None:
    pipeline.script = numbered
    reply = (await local.chat(n=3, seed=5, stage_params={"voice": {"seed": 1}})).json()
    assert [c["message"]["content"] for c in reply["choices"]] == ["seed 5", "seed 6", "seed 7"]
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 9, 16)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 5
    assert usage["completion_tokens_details"]["audio_tokens"] == 3
    assert [r.params.stage_params["voice"].seed for r in pipeline.requests] == [1, 2, 3]
    assert len({r.request_id for r in pipeline.requests}) == 1, "one cancel ends them all"


async def test_choices_are_streamed_side_by_side(live: Any, pipeline: Any, kit: Any) -> None:
    pipeline.script = numbered
    stream = await live.openai.chat.completions.create(
        model=kit.MODEL, messages=kit.hello()["messages"], n=2, seed=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    *parts, last = chunks
    assert last.usage.completion_tokens == 6
    said = {0: "", 1: ""}
    for chunk in parts:
        [choice] = chunk.choices
        said[choice.index] += choice.delta.content or ""
    assert said == {0: "seed 0", 1: "seed 1"}
    order = [chunk.choices[0].index for chunk in parts]
    assert order != sorted(order)
    ends = [c.choices[0].index for c in parts if c.choices[0].finish_reason == "stop"]
    assert sorted(ends) == [0, 1]


async def test_the_choices_of_a_stream_begin_by_index(live: Any, pipeline: Any, kit: Any) -> None:
    """openai-python adds them to a list as they come, whichever says something first."""

    def script(request: Any) -> list[Any]:
        if request.params.sampling.seed:
            return numbered(request)
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, later.set)
        return [later, *numbered(request)]

    pipeline.script = script
    async with live.openai.chat.completions.stream(
        model=kit.MODEL, messages=kit.hello()["messages"], n=3, seed=0
    ) as stream:
        chunks = [event.chunk.choices[0] async for event in stream if event.type == "chunk"]
        final = await stream.get_final_completion()
    assert [chunk.index for chunk in chunks[:3]] == [0, 1, 2]
    assert next(chunk.index for chunk in chunks if chunk.delta.content) != 0
    assert [choice.message.content for choice in final.choices] == ["seed 0", "seed 1", "seed 2"]


async def test_each_choice_has_its_own_audio(local: Any) -> None:
    reply = (await local.chat(n=2, modalities=["text", "audio"])).json()
    audio = [choice["message"]["audio"] for choice in reply["choices"]]
    assert audio[0]["id"] != audio[1]["id"]
    assert audio[0]["data"] == audio[1]["data"]


async def test_each_choice_streams_its_own_audio(local: Any) -> None:
    asked = {"n": 2, "modalities": ["text", "audio"], "stream": True}
    frames = (await local.chat(**asked)).text.split("\n\n")[:-2]
    ids: dict[int, list[str]] = {0: [], 1: []}
    pcm = {0: b"", 1: b""}
    for frame in frames:
        [choice] = json.loads(frame.removeprefix("data: "))["choices"]
        audio = choice["delta"].get("audio", {})
        ids[choice["index"]] += [audio["id"]] if "id" in audio else []
        pcm[choice["index"]] += base64.b64decode(audio.get("data", ""))
    assert len(ids[0]) == len(ids[1]) == 1
    assert ids[0] != ids[1]
    assert pcm[0] == pcm[1]
    assert len(pcm[0]) == 2 * (480 + 31 + 960)


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failing_choice_fails_the_request(
    local: Any, pipeline: Any, stream: bool
) -> None:
    def script(request: Any) -> list[Any]:
        held = asyncio.Event()
        return [OverloadedError("full")] if request.params.sampling.seed else [held]

    pipeline.script = script
    response = await local.chat(n=2, seed=0, stream=stream)
    assert response.status_code == 503
    assert pipeline.running == 0


async def test_a_client_that_leaves_ends_all_choices(live: Any, pipeline: Any) -> None:
    pipeline.script = lambda request: [TextDelta(text="x"), asyncio.Event()]
    body = {"messages": [{"role": "user", "content": "Hi"}], "n": 3, "stream": True}
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        await anext(response.aiter_bytes())
        assert pipeline.running == 3
    async with asyncio.timeout(5):
        while pipeline.running:
            await pipeline.closed.wait()


@pytest.mark.parametrize("kind", ["media", "text"])
async def test_choices_do_not_multiply_a_body_beyond_its_limit(
    pipeline: Any, kit: Any, kind: str
) -> None:
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL, max_body_bytes=4096))
    heard = {"data": base64.b64encode(b"x" * 600).decode(), "format": "wav"}
    content = [{"type": "input_audio", "input_audio": heard}] if kind == "media" else "x" * 800
    messages = [{"role": "user", "content": content}]
    assert (await live.chat(messages=messages, n=4)).status_code == 200
    assert (await live.chat(n=8)).status_code == 200
    error = await live.refused(400, messages=messages, n=5)
    assert (error["param"], error["code"]) == ("n", "invalid_value")
    assert "count once for each choice, and together they may be 4096" in error["message"]


async def test_media_of_all_choices_are_fetched_once(local: Any, pipeline: Any) -> None:
    """Choices say that they have the same URL; another request with it is none of them."""
    for n in (3, 2, 1):
        assert (await local.chat(n=n, images=["http://h/i.png"])).status_code == 200
    shared = [request.messages[0].content[0].shared for request in pipeline.requests]
    assert shared[0] == shared[1] == shared[2]
    assert shared[3] == shared[4]
    assert [s and s.requests for s in shared] == [3, 3, 3, 2, 2, None]
    assert shared[0].by != shared[3].by


def test_every_field_of_the_openai_package_is_known() -> None:
    theirs = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert set(theirs) | {"stream"} <= set(ChatBody.__struct_fields__)
    options = ChatCompletionStreamOptionsParam.__annotations__
    assert set(options) <= set(StreamOptions.__struct_fields__)


async def test_null_equals_absent(local: Any, pipeline: Any) -> None:
    required = {"messages", "model"}
    nulls = dict.fromkeys(set(ChatBody.__struct_fields__) - required)
    assert (await local.chat(**nulls)).status_code == 200
    assert (await local.chat()).status_code == 200
    with_nulls, without = (
        msgspec.structs.replace(request, request_id=None) for request in pipeline.requests
    )
    assert with_nulls == without


HARMLESS: list[dict[str, Any]] = [
    {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"},
    {"service_tier": "default"},
    {"prediction": {"type": "content", "content": "Hi"}}, {"prompt_cache_key": "k"},
    {"prompt_cache_retention": "24h"},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    {"verbosity": "medium"}, {"reasoning_effort": "none"},
    {"parallel_tool_calls": True}, {"tool_choice": "none"}, {"tools": []}, {"functions": []},
    {"n": 1}, {"response_format": {"type": "text"}}, {"stream_options": None},
]  # fmt: skip


@pytest.mark.parametrize("body", HARMLESS, ids=str)
async def test_what_changes_nothing_is_accepted(local: Any, pipeline: Any, body: Any) -> None:
    assert (await local.chat(**body)).status_code == 200
    assert (await local.chat()).status_code == 200
    one, other = (msgspec.structs.replace(r, request_id=None) for r in pipeline.requests)
    assert one == other


async def test_whose_turn_it_is(local: Any, pipeline: Any) -> None:
    for body in ({"user": "ada"}, {"safety_identifier": "ada"}, {}):
        await local.chat(**body)
    ada, also_ada, nobody = (request.client for request in pipeline.requests)
    assert ada == also_ada != nobody
