"""openai-python's chat client in the ways that people use it, against a live server.

tests/test_openai_client.py asks more of the server itself; here it is the client's own helpers:
asynchronous, accumulating, parsing, raw and streamed responses.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

from asked import BRIEF, MODEL, QUESTION, TEXT_AND_AUDIO, VOICE
from families import FAMILY

SPOKEN: dict[str, Any] = {"modalities": TEXT_AND_AUDIO, "audio": {"voice": VOICE, "format": "wav"}}
SPOKEN_STREAM: dict[str, Any] = {**SPOKEN, "audio": {"voice": VOICE, "format": "pcm16"}}


class Trip(BaseModel):
    """What a reply is asked to be."""

    city: Literal["Paris", "Rome"]
    days: Annotated[int, Field(ge=0, le=9)]


WITH_TOOLS = pytest.mark.skipif(not FAMILY.tools, reason="this model takes no tools")
ROOM = {**BRIEF, "max_tokens": 120}
TOOLS = [
    pydantic_function_tool(Trip, name="plan_trip"),
    pydantic_function_tool(Trip, name="cancel_trip"),
]


async def test_the_asynchronous_client_hears_what_the_synchronous_one_hears(
    client: OpenAI, async_client: AsyncOpenAI
) -> None:
    whole = client.chat.completions.create(**BRIEF)
    reply = await async_client.chat.completions.create(**BRIEF)
    assert reply.choices == whole.choices
    assert reply.usage is not None
    assert whole.usage is not None
    assert reply.usage.completion_tokens == whole.usage.completion_tokens > 0
    stream = await async_client.chat.completions.create(
        **BRIEF, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    content = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(content) == whole.choices[0].message.content
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


async def test_the_stream_helper_puts_a_spoken_reply_together(async_client: AsyncOpenAI) -> None:
    completions = async_client.chat.completions
    whole = (await completions.create(**BRIEF, **SPOKEN_STREAM)).choices[0].message.audio
    async with completions.stream(**BRIEF, **SPOKEN_STREAM) as stream:
        kinds = {event.type async for event in stream}
        [choice] = (await stream.get_final_completion()).choices
    audio = choice.message.audio
    assert "chunk" in kinds
    assert whole is not None
    assert audio is not None
    assert audio.transcript == whole.transcript != ""
    assert len(base64.b64decode(audio.data)) == len(base64.b64decode(whole.data)) > 0
    assert audio.expires_at > 0
    follow = {"role": "user", "content": "Go on."}
    said = {"role": "assistant", "audio": {"id": audio.id}}
    spelled = {"role": "assistant", "content": audio.transcript}
    named, written = [
        await completions.create(**{**BRIEF, "messages": [*QUESTION, turn, follow]})
        for turn in (said, spelled)
    ]
    assert named.choices == written.choices


def test_events_of_the_stream_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(**BRIEF) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "content.delta"]
    [done] = [event for event in events if event.type == "content.done"]
    content = final.choices[0].message.content
    assert "".join(event.delta for event in deltas) == done.content == content
    assert [event.snapshot for event in deltas][-1] == content


def test_log_probabilities_streamed_equal_whole(client: OpenAI) -> None:
    asked = {**BRIEF, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    listed = whole.choices[0].logprobs
    assert listed is not None
    assert listed.content
    assert {len(token.top_logprobs) for token in listed.content} == {2}
    assert all(token.logprob <= 0 for token in listed.content)
    assert all(token.top_logprobs[0].logprob >= token.logprob - 1e-4 for token in listed.content)
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0].logprobs
    [done] = [event for event in events if event.type == "logprobs.content.done"]
    assert final is not None
    assert final.content == done.content
    tokens = [token.token for token in done.content]
    assert tokens == [token.token for token in listed.content]
    whole_values = [token.logprob for token in listed.content]
    assert [token.logprob for token in done.content] == pytest.approx(whole_values, abs=1e-3)


def test_choices_are_told_apart_in_a_stream(client: OpenAI) -> None:
    asked = {**BRIEF, "temperature": 1, "seed": 3, "n": 3}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        final = stream.until_done().get_final_completion()
    said = {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(said.values())) == 3
    assert {choice.index: choice.message.content for choice in final.choices} == said


async def test_a_reply_is_parsed_whole_and_streamed(async_client: AsyncOpenAI) -> None:
    completions = async_client.chat.completions
    parsed = await completions.parse(**ROOM, response_format=Trip)
    trip = parsed.choices[0].message.parsed
    assert isinstance(trip, Trip)
    async with completions.stream(**ROOM, response_format=Trip) as stream:
        events = [event async for event in stream]
    [done] = [event for event in events if event.type == "content.done"]
    assert done.parsed == trip
    assert json.loads(done.content) == trip.model_dump()


def test_a_parsed_reply_may_be_spoken(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        **ROOM,
        **SPOKEN,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "trip", "strict": True, "schema": {
                **Trip.model_json_schema(), "additionalProperties": False}},
        },
    )  # fmt: skip
    audio = reply.choices[0].message.audio
    assert audio is not None
    Trip.model_validate_json(audio.transcript)
    assert base64.b64decode(audio.data).startswith(b"RIFF")


@WITH_TOOLS
@pytest.mark.parametrize("name", ["plan_trip", "cancel_trip"])
async def test_a_named_function_is_called(async_client: AsyncOpenAI, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    async with async_client.chat.completions.stream(
        **ROOM, tools=TOOLS, tool_choice=choice
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert calls[0].function.name == name
    assert isinstance(calls[0].function.parsed_arguments, Trip)
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.arguments for event in done] == [call.function.arguments for call in calls]
    assert len({call.id for call in calls}) == len(calls)


@WITH_TOOLS
def test_a_function_that_may_not_be_called_is_not(client: OpenAI) -> None:
    reply = client.chat.completions.parse(**BRIEF, tools=TOOLS, tool_choice="none")
    assert not reply.choices[0].message.tool_calls
    assert reply.choices[0].message.content


def test_the_raw_response_has_the_id_of_the_request(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        **BRIEF, extra_headers={"x-request-id": "my-own-id"}
    )
    assert raw.http_response.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == raw.request_id == "my-own-id"
    completion = raw.parse()
    assert completion._request_id == "my-own-id"
    assert completion.model == MODEL


def test_the_lines_of_a_stream(client: OpenAI) -> None:
    streaming = client.chat.completions.with_streaming_response
    with streaming.create(**BRIEF, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_the_stream_of_a_raw_response(async_client: AsyncOpenAI) -> None:
    raw = await async_client.chat.completions.with_raw_response.create(**BRIEF, stream=True)
    said = [chunk.choices[0].delta.content or "" async for chunk in raw.parse()]
    whole = await async_client.chat.completions.create(**BRIEF)
    assert "".join(said) == whole.choices[0].message.content


async def test_the_models(async_client: AsyncOpenAI) -> None:
    listed = [model async for model in async_client.models.list()]
    [model] = listed
    assert model == await async_client.models.retrieve(MODEL)
    raw = await async_client.models.with_raw_response.list()
    body = json.loads(raw.http_response.content)
    assert body["object"] == "list"
    assert body["data"][0]["output_modalities"] == TEXT_AND_AUDIO
