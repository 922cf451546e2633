"""Refusals and failures, as openai-python's exceptions."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from asked import BRIEF, MODEL, OTHER_KEY, QUESTION, RATE_LIMIT, READING, recorded, tone
from families import FAMILY
from omni_server.openai.speech import MAX_BODY_BYTES, MAX_CLONING_BODY_BYTES

ENDLESS: dict[str, Any] = {
    "model": MODEL,
    "messages": QUESTION,
    "max_tokens": 1_500,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}


def chat(client: OpenAI, **changes: Any) -> Any:
    return client.chat.completions.create(**{**BRIEF, **changes})


def speech(client: OpenAI, **changes: Any) -> Any:
    return client.audio.speech.create(**{**READING, **changes})


def transcription(client: OpenAI, **changes: Any) -> Any:
    asked = {"file": recorded(tone(0.3), "wav"), "model": MODEL, **changes}
    return client.audio.transcriptions.create(**asked)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "temperature": (chat, {"temperature": -1}, "temperature"),
    "chat voice": (
        chat,
        {"modalities": ["audio"], "audio": {"voice": "nobody", "format": "wav"}},
        "audio.voice",
    ),
    "role": (chat, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    "blank": (speech, {"input": " "}, "input"),
    "speech voice": (speech, {"voice": "alloy"}, "voice"),
    "speech format": (speech, {"response_format": "midi"}, "response_format"),
    "instructions": (speech, {"instructions": "Whisper."}, "instructions"),
    "no sound": (transcription, {"file": b"no sound"}, "file"),
    "language": (transcription, {"language": "xx"}, "language"),
    "words": (
        transcription,
        {"response_format": "verbose_json", "timestamp_granularities": ["word"]},
        "timestamp_granularities",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_names_the_field(client: OpenAI, case: str) -> None:
    call, changes, param = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as refused:
        call(client, **changes)
    assert (refused.value.param or "").startswith(param)
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id


@pytest.mark.parametrize("call", [chat, speech, transcription])
def test_an_unknown_model(client: OpenAI, call: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        call(client, model="gpt-4o")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_wrong_key(served: str) -> None:
    with (
        OpenAI(base_url=f"{served}/v1", api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_key_of_no_operator(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.post("/../admin/pause", cast_to=object)


def test_too_many_requests(client: OpenAI, served: str) -> None:
    """The other key's bucket is emptied; this one's is not."""

    def ask(hasty: OpenAI) -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as refused:
            chat(hasty, temperature=-1)
        return refused.value

    with (
        OpenAI(base_url=f"{served}/v1", api_key=OTHER_KEY, max_retries=0) as hasty,
        ThreadPoolExecutor(8) as several,
    ):
        errors = list(several.map(ask, [hasty] * (RATE_LIMIT + RATE_LIMIT // 4)))
        assert {type(error) for error in errors} == {openai.BadRequestError, openai.RateLimitError}
        too_many = next(error for error in errors if isinstance(error, openai.RateLimitError))
        assert int(too_many.response.headers["retry-after"]) >= 1
        assert chat(hasty.with_options(max_retries=3)).choices, "the SDK waits as it is told"
    assert chat(client).choices


def test_a_text_that_is_too_long(client: OpenAI) -> None:
    most = MAX_CLONING_BODY_BYTES if FAMILY.clones_voices else MAX_BODY_BYTES
    for length, status in ((10_000, 400), (most, 413)):
        with pytest.raises(openai.APIStatusError) as refused:
            speech(client, input="x" * length)
        assert refused.value.status_code == status


def test_a_deadline(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as late:
        chat(client, max_tokens=1_500, extra_body={"ignore_eos": True, "timeout": 0.2})
    assert late.value.status_code == 504
    assert late.value.code == "deadline_exceeded"
    with pytest.raises(openai.APITimeoutError):
        chat(client.with_options(timeout=0.2), max_tokens=1_500, extra_body={"ignore_eos": True})


async def test_a_stream_that_is_cancelled_by_its_id(async_client: AsyncOpenAI) -> None:
    stream = await async_client.chat.completions.create(**ENDLESS)
    first = await anext(aiter(stream))
    cancelled = await async_client.post(f"/requests/{first.id}/cancel", cast_to=httpx.Response)
    assert cancelled.json()["cancelled"] == 1
    with pytest.raises(openai.APIError, match=re.compile("cancel", re.IGNORECASE)):
        async for _ in stream:
            pass


async def test_a_client_that_leaves_a_stream(async_client: AsyncOpenAI) -> None:
    async with await async_client.chat.completions.create(**ENDLESS) as stream:
        await anext(aiter(stream))
    assert (await async_client.chat.completions.create(**BRIEF)).choices
