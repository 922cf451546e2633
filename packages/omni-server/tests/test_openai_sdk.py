"""The openai package as the client, over a real socket."""

from __future__ import annotations

import base64

import openai
import pytest

from omni_core.errors import StageDiedError
from omni_core.types import TextDelta

MESSAGES = [{"role": "user", "content": "Hi"}]


async def test_text(live, kit):
    reply = await live.openai.chat.completions.create(model=kit.MODEL, messages=MESSAGES)
    assert reply.choices[0].message.content == "Héllo there"
    assert reply.choices[0].message.audio is None
    assert reply.usage.completion_tokens_details.audio_tokens == 7
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    assert reply._request_id == reply.id


async def test_text_streamed(live, kit):
    stream = await live.openai.chat.completions.create(
        model=kit.MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Héllo there"
    assert chunks[-1].usage.total_tokens == 23


async def test_audio(live, kit):
    reply = await live.openai.chat.completions.create(
        model=kit.MODEL, messages=MESSAGES, modalities=["text", "audio"],
        audio={"voice": "chelsie", "format": "wav"},
    )  # fmt: skip
    message = reply.choices[0].message
    assert message.content is None
    assert message.audio.transcript == "Héllo there"
    assert base64.b64decode(message.audio.data).startswith(b"RIFF")
    assert message.audio.expires_at > reply.created


async def test_audio_streamed(live, kit):
    stream = await live.openai.chat.completions.create(
        model=kit.MODEL, messages=MESSAGES, modalities=["text", "audio"], stream=True,
        audio={"voice": "chelsie", "format": "pcm16"},
    )  # fmt: skip
    pcm, transcript, ids = b"", "", set()
    async for chunk in stream:
        audio = getattr(chunk.choices[0].delta, "audio", None) or {}
        pcm += base64.b64decode(audio.get("data", ""))
        transcript += audio.get("transcript", "")
        ids |= {audio["id"]} if "id" in audio else set()
    assert len(ids) == 1
    assert transcript == "Héllo there"
    assert len(pcm) == 2 * 1471


async def test_the_sdks_own_accumulation_of_a_stream(live, kit):
    asked = {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "pcm16"}}
    create = live.openai.chat.completions
    async with create.stream(model=kit.MODEL, messages=MESSAGES, **asked) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    whole = await create.create(model=kit.MODEL, messages=MESSAGES, **asked)
    assert message.audio.id.count("audio_") == 1
    assert message.audio.transcript == "Héllo there"
    assert message.audio.data == whole.choices[0].message.audio.data
    assert message.audio.model_dump()["sample_rate"] == kit.RATE
    follow = [*MESSAGES, {"role": "assistant", "audio": {"id": message.audio.id}}, *MESSAGES]
    await create.create(model=kit.MODEL, messages=follow)
    assert live.pipeline.requests[-1].messages[1].content[0].text == "Héllo there"


async def test_errors_become_the_sdks_exceptions(live, kit):
    create = live.openai.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model=kit.MODEL, messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="gpt-4o", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    live.pipeline.script = lambda request: [TextDelta(text="a"), StageDiedError("stage gone")]
    stream = await create(model=kit.MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="stage gone"):
        [chunk async for chunk in stream]


async def test_models(live, kit):
    assert [model.id async for model in live.openai.models.list()] == [kit.MODEL]
    assert (await live.openai.models.retrieve(kit.MODEL)).owned_by == "omni"
