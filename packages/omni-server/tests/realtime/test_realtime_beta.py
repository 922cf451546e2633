"""The names of the beta, for clients that ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from openai.types.beta.realtime import RealtimeServerEvent

from omni_core.types import Finished, TextDelta, Usage
from omni_server.realtime.dialect import Beta


@pytest.fixture
def desk(desks: Any) -> Any:
    return desks(dialect=Beta())


def check(desk: Any, sounds: Any) -> None:
    for event in desk.said:
        if event["type"] in ("session.created", "session.updated"):
            event = {**event, "session": {**event["session"], "model": "gpt-realtime"}}
        sounds.check(event, RealtimeServerEvent)


async def test_flat_settings(desk, sounds):
    created, conversation = desk.said
    assert conversation["type"] == "conversation.created"
    assert created["session"]["modalities"] == ["audio", "text"]
    assert created["session"]["input_audio_format"] == "pcm16"
    assert created["session"]["turn_detection"]["type"] == "server_vad"
    session = await desk.update(
        voice="chelsie", modalities=["text"], turn_detection=None, input_audio_format="g711_ulaw",
        input_audio_transcription={"model": "whisper-1"}, max_response_output_tokens=9,
        output_audio_format="g711_alaw", temperature=0.8,
    )  # fmt: skip
    assert session["voice"] == "Chelsie"
    assert session["modalities"] == ["text"]
    assert session["turn_detection"] is None
    assert session["input_audio_format"] == "g711_ulaw"
    assert session["max_response_output_tokens"] == 9
    assert "audio" not in session
    assert desk.session.settings.audio.output.format.type == "audio/pcma"
    assert desk.session.settings.audio.input.transcription is not None
    check(desk, sounds)


async def test_a_spoken_turn(desk, sounds):
    parts = (sounds.silence(0.5), sounds.speech(0.4), sounds.silence(0.7))
    await desk.append(np.concatenate(parts))
    await desk.quiet()
    told = set(desk.kinds)
    assert {"response.audio.delta", "response.audio_transcript.delta"} <= told
    assert "conversation.item.created" in told
    assert not {kind for kind in told if "output_audio" in kind}
    assert "conversation.item.added" not in told
    assert "conversation.item.done" not in told
    response = desk.said[-1]["response"]
    assert response["modalities"] == ["audio", "text"]
    assert response["output"][0]["content"][0]["type"] == "audio"
    check(desk, sounds)


async def test_text_in_old_names(desk, sounds):
    content = [{"type": "text", "text": "Earlier."}]
    item = {"type": "message", "role": "assistant", "content": content}
    await desk.tell("conversation.item.create", item=item)
    await desk.write()
    await desk.ask(modalities=["text"], max_response_output_tokens=5)
    assert desk.requests[0].params.sampling.max_tokens == 5
    assert desk.prompt() == [("assistant", "Earlier."), ("user", "Hi")]
    assert "response.text.delta" in desk.kinds
    assert desk.said[-1]["response"]["output"][0]["content"] == [
        {"type": "text", "text": "Héllo there"}
    ]
    check(desk, sounds)


async def test_a_transcription_session(desks, sounds):
    desk = desks(dialect=Beta(), kind="transcription")
    assert desk.kinds == ["transcription_session.created"]
    desk.context.pipeline.script = lambda request: [
        TextDelta(text="Good morning."), Finished(finish_reason="stop", usage=Usage())
    ]  # fmt: skip
    await desk.tell("transcription_session.update", session={
        "input_audio_format": "pcm16", "modalities": ["text"], "client_secret": None,
        "input_audio_transcription": {"model": "gpt-4o-transcribe", "language": "en"},
        "input_audio_noise_reduction": None, "turn_detection": None,
    })  # fmt: skip
    updated = desk.said[-1]
    assert updated["session"]["input_audio_transcription"]["language"] == "en"
    await desk.append(sounds.speech(0.4))
    await desk.tell("input_audio_buffer.commit")
    await desk.until("conversation.item.input_audio_transcription.completed")
    assert (await desk.refused("response.create"))["code"] == "unsupported_event"
    updated["session"]["client_secret"] = {"expires_at": 1, "value": "there is none"}
    for event in desk.said[1:]:
        sounds.check(event, RealtimeServerEvent)


async def test_a_conversation_may_become_a_transcription_session(desk):
    settings = {"input_audio_transcription": {"model": "whisper-1"}}
    await desk.tell("transcription_session.update", session=settings)
    assert desk.kinds[-1] == "transcription_session.updated"
    assert desk.session.settings.type == "transcription"


async def test_today_there_is_one_event_for_all_sessions(desks):
    desk = desks()
    error = await desk.refused("transcription_session.update", session={})
    assert "session.update" in error["message"]
