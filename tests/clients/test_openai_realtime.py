"""A conversation over the realtime socket: the replies are those of chat, and what is cancelled
ends in every stage."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI

from asked import MODEL
from families import FAMILY
from omni_core.media import wav_bytes

RATE = 16_000
PCM = (12_000 * np.sin(np.arange(RATE) * 0.1)).astype("<i2")
"""A second of a tone."""
TOKENS = 12
QUIET: dict[str, Any] = {"input": {"turn_detection": None, "format": {"rate": RATE}}}
SOME_S = 60.0
AT_ONCE_S = 1.0


class Conversation:
    """One session of manual turns, answered greedily."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.heard: list[Any] = []

    async def until(self, kind: str) -> Any:
        async with asyncio.timeout(SOME_S):
            while True:
                event = await self.connection.recv()
                assert event.type != "error", event
                self.heard.append(event)
                if event.type == kind:
                    return event

    async def begin(self, output: dict[str, Any] | None = None, **settings: Any) -> None:
        await self.until("session.created")
        audio = {**QUIET, "output": output or {}}
        settings |= {"type": "realtime", "audio": audio, "temperature": 0}
        await self.connection.session.update(session=settings)
        await self.until("session.updated")

    async def say(self, data: bytes) -> None:
        for start in range(0, len(data), 3_333):
            piece = base64.b64encode(data[start : start + 3_333]).decode()
            await self.connection.input_audio_buffer.append(audio=piece)
        await self.connection.input_audio_buffer.commit()

    async def write(self, words: str) -> None:
        content = [{"type": "input_text", "text": words}]
        item = {"type": "message", "role": "user", "content": content}
        await self.connection.conversation.item.create(item=item)

    async def ask(self, **settings: Any) -> Any:
        await self.connection.response.create(response={"max_output_tokens": TOKENS, **settings})
        return (await self.until("response.done")).response


def talking(client: AsyncOpenAI) -> Any:
    client.websocket_base_url = str(client.base_url).replace("http", "ws", 1)
    return client.realtime.connect(model=MODEL)


async def test_replies_are_those_of_chat_and_earlier_turns_are_not_computed_again(
    async_client: AsyncOpenAI,
) -> None:
    chat = async_client.chat.completions
    limits: dict[str, Any] = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0}
    sound = {"data": base64.b64encode(wav_bytes(PCM, RATE)).decode(), "format": "wav"}
    asked = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": "Well?"}]
    turns: list[Any] = [{"role": "user", "content": asked}]
    async with talking(async_client) as connection:
        talk = Conversation(connection)
        await talk.begin(output_modalities=["text"])
        content = [
            {"type": "input_audio", "audio": base64.b64encode(PCM).decode()},
            {"type": "input_text", "text": "Well?"},
        ]
        item: Any = {"type": "message", "role": "user", "content": content}
        await connection.conversation.item.create(item=item)
        first = await talk.ask()
        said = (await chat.create(messages=turns, **limits)).choices[0].message.content
        assert first.output[0].content[0].text == said
        await talk.write("And now?")
        second = await talk.ask()
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "And now?"}]
        again = (await chat.create(messages=turns, **limits)).choices[0].message.content
    assert second.output[0].content[0].text == again
    assert second.usage.input_token_details.cached_tokens > first.usage.input_tokens // 2
    heard = [one.usage.input_token_details.audio_tokens for one in (first, second)]
    assert heard[0] == heard[1]


@pytest.mark.parametrize(
    ("kind", "rate", "sample"),
    [("audio/pcm", 24_000, "<i2"), ("audio/pcm", 16_000, "<i2"), ("audio/pcmu", 8_000, "u1")],
)
async def test_a_spoken_turn_is_answered_aloud(
    async_client: AsyncOpenAI, kind: str, rate: int, sample: str
) -> None:
    """At the rate of the session, whatever the model's is."""
    wanted = {"type": kind, **({"rate": rate} if kind == "audio/pcm" else {})}
    async with talking(async_client) as connection:
        talk = Conversation(connection)
        await talk.begin(instructions="Be brief.", output={"format": wanted})
        await talk.say(PCM.tobytes())
        done = await talk.ask()
    deltas = [event.delta for event in talk.heard if event.type == "response.output_audio.delta"]
    samples = np.frombuffer(b"".join(map(base64.b64decode, deltas)), sample)
    frames = done.usage.output_token_details.audio_tokens
    frame = round(rate * FAMILY.frame_s)  # which is one audio token
    assert (frames - 1) * frame < len(samples) <= frames * frame
    assert len(np.unique(samples)) > 64
    said = [e.delta for e in talk.heard if e.type == "response.output_audio_transcript.delta"]
    assert "".join(said) == done.output[0].content[0].transcript


async def test_a_cancelled_response_ends_in_every_stage(
    async_client: AsyncOpenAI, served: str
) -> None:
    async with talking(async_client) as connection:
        talk = Conversation(connection)
        await talk.begin()
        await talk.write("Tell me about the sea.")
        await connection.response.create(response={"max_output_tokens": 1_500})
        await talk.until("response.output_audio.delta")
        await connection.response.cancel()
        done = await talk.until("response.done")
        assert done.response.status == "cancelled"
        async with asyncio.timeout(AT_ONCE_S):
            while busy := await busy_stages(served, async_client.api_key):
                await asyncio.sleep(0.01)
        assert not busy
        assert (await talk.ask(output_modalities=["text"])).status in ("completed", "incomplete")


async def busy_stages(served: str, key: str) -> list[str]:
    """Lines of /metrics that say a stage still holds or awaits a request."""
    async with httpx.AsyncClient(base_url=served, headers={"x-api-key": key}) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    held = ("omni_stage_running{", "omni_stage_waiting{", "omni_stage_held{")
    return [line for line in lines if line.startswith(held) and not line.endswith(" 0.0")]
