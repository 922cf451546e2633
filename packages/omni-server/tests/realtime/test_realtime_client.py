"""WS /v1/realtime with openai's realtime client, over a real socket, on a scripted pipeline."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest
from openai.types.realtime import RealtimeServerEvent

from omni_core.media import pcm16
from omni_core.testing.voice import say_vowels
from omni_core.types import TextDelta

DONE = "response.done"


class Talk:
    """One session, and what the server said in it."""

    def __init__(self, connection: Any, sounds: Any) -> None:
        self.connection, self.sounds = connection, sounds
        self.said: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send({"type": kind, **fields})

    async def until(self, kind: str) -> dict[str, Any]:
        """Read until there is an event of that type; each is checked against openai's types."""
        while True:
            event = (await self.connection.recv()).to_dict()
            self.sounds.check(event, RealtimeServerEvent)
            self.said.append(event)
            if event["type"] == kind:
                return event

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.said]

    def all(self, what: str) -> list[dict[str, Any]]:
        """What was said of the input buffer."""
        return [event for event in self.said if event["type"] == f"input_audio_buffer.{what}"]

    def joined(self, kind: str) -> str:
        return "".join(event["delta"] for event in self.said if event["type"] == kind)


def talking(live: Any, kit: Any, **query: Any) -> Any:
    live.openai.websocket_base_url = live.url.replace("http", "ws") + "/v1"
    return live.openai.realtime.connect(model=kit.MODEL, **query)


def pcm(n: int, start: int = 0) -> np.ndarray:
    return (np.arange(start, start + n) % 30_000 - 15_000).astype("<i2")


def b64(samples: np.ndarray) -> str:
    return base64.b64encode(samples.tobytes()).decode()


async def test_text_in_and_text_out(live, kit, sounds):
    async with talking(live, kit) as connection:
        talk = Talk(connection, sounds)
        session = (await talk.until("session.created"))["session"]
        assert session["model"] == kit.MODEL
        await talk.send("session.update", session={
            "type": "realtime", "output_modalities": ["text"], "instructions": "Be brief.",
        })  # fmt: skip
        updated = (await talk.until("session.updated"))["session"]
        assert updated["instructions"] == "Be brief."
        await talk.send("conversation.item.create", item={
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}],
        })  # fmt: skip
        await talk.send("response.create")
        done = (await talk.until(DONE))["response"]
    assert done["status"] == "completed"
    assert done["output"][0]["content"] == [{"type": "output_text", "text": "Héllo there"}]
    assert done["usage"]["input_token_details"]["cached_tokens"] == 3
    assert talk.joined("response.output_text.delta") == "Héllo there"
    assert talk.kinds[2:] == [
        "conversation.item.added", "conversation.item.done", "response.created",
        "response.output_item.added", "conversation.item.added", "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "conversation.item.done", DONE,
    ]  # fmt: skip


async def test_a_manual_spoken_turn(live, kit, sounds):
    sent = pcm(24_000)
    async with talking(live, kit) as connection:
        talk = Talk(connection, sounds)
        await talk.until("session.created")
        await talk.send("session.update", session={
            "type": "realtime",
            "audio": {"input": {"turn_detection": None}, "output": {"voice": "chelsie"}},
        })  # fmt: skip
        await talk.until("session.updated")
        for start in range(0, len(sent), 1_000):
            await talk.send("input_audio_buffer.append", audio=b64(sent[start : start + 1_000]))
        await talk.send("input_audio_buffer.commit")
        await talk.send("response.create")
        done = (await talk.until(DONE))["response"]
    [request] = live.pipeline.requests
    assert request.params.modalities == ("text", "audio")
    assert request.params.voice == "Chelsie"
    [message] = request.messages
    assert message.content[0].data[44:] == sent.tobytes()
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Héllo there"}]
    assert talk.joined("response.output_audio_transcript.delta") == "Héllo there"
    sound = b"".join(
        base64.b64decode(e["delta"]) for e in talk.said if e["type"].endswith("audio.delta")
    )
    assert len(sound) / 2 == pytest.approx(1471 * 24_000 / kit.RATE, abs=2)
    assert talk.kinds[2:5] == [
        "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
    ]  # fmt: skip
    assert talk.kinds[-6:] == [
        "response.output_audio.done", "response.output_audio_transcript.done",
        "response.content_part.done", "response.output_item.done", "conversation.item.done", DONE,
    ]  # fmt: skip


async def test_spoken_turns_are_found_and_interrupt(live, kit, sounds):
    pytest.importorskip("onnxruntime", reason="the realtime extra is not installed")
    live.pipeline.script = lambda request: [
        TextDelta(text="one two three"), kit.sound(0, kit.RATE), asyncio.Event(),
    ]  # fmt: skip
    turn = np.concatenate([np.zeros(12_000), say_vowels("aeiou", 24_000), np.zeros(24_000)])
    sent = np.frombuffer(pcm16(turn.astype(np.float32)), "<i2")
    async with talking(live, kit) as connection:
        talk = Talk(connection, sounds)
        await talk.until("session.created")
        for _ in range(2):
            for start in range(0, len(sent), 480):
                await talk.send("input_audio_buffer.append", audio=b64(sent[start : start + 480]))
            await talk.until("response.output_audio.delta")
        [cancelled] = [event for event in talk.said if event["type"] == DONE]
        assert live.pipeline.running == 1
    assert cancelled["response"]["status_details"]["reason"] == "turn_detected"
    users = [m for m in live.pipeline.requests[-1].messages if m.role == "user"]
    turns = zip(talk.all("speech_started"), talk.all("speech_stopped"), users, strict=True)
    both = np.concatenate([sent, sent])
    for began, stopped, message in turns:
        heard = both[began["audio_start_ms"] * 24 : stopped["audio_end_ms"] * 24]
        assert message.content[0].data[44:] == heard.tobytes()
