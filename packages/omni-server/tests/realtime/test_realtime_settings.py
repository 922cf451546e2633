"""session.update: what is there changes, all of it or nothing."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.specs import ModelInfo, VoiceCloning
from omni_core.types import MediaPart, VoiceSample
from omni_server.voices.store import UploadedVoice, VoiceCard

VAD = {
    "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500,
    "create_response": True, "interrupt_response": True, "idle_timeout_ms": None,
}  # fmt: skip


def heard(**settings: Any) -> dict[str, Any]:
    return {"audio": {"input": settings}}


def spoken(**settings: Any) -> dict[str, Any]:
    return {"audio": {"output": settings}}


async def test_a_session_begins_with_all_settings(desk, kit):
    session = desk.said[0]["session"]
    assert session["type"] == "realtime"
    assert session["model"] == kit.MODEL
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["input"] == {
        "format": {"type": "audio/pcm", "rate": 24_000}, "noise_reduction": None,
        "transcription": None, "turn_detection": VAD,
    }  # fmt: skip
    assert session["audio"]["output"] == {
        "format": {"type": "audio/pcm", "rate": 24_000}, "voice": "Ethan", "speed": 1.0,
    }  # fmt: skip
    assert (session["instructions"], session["tools"]) == ("", [])


async def test_what_is_not_named_stays(desk):
    await desk.update(instructions="Be brief.", **heard(turn_detection={"threshold": 0.7}))
    session = await desk.update(**spoken(voice="chelsie"))
    assert session["instructions"] == "Be brief."
    assert session["audio"]["input"]["turn_detection"] == {**VAD, "threshold": 0.7}
    assert session["audio"]["output"]["voice"] == "Chelsie"
    session = await desk.update(instructions="", tools=[], **heard(turn_detection=None))
    assert session["instructions"] == ""
    assert session["audio"]["input"]["turn_detection"] is None
    session = await desk.update(**heard(turn_detection={"type": "server_vad"}))
    assert session["audio"]["input"]["turn_detection"] == VAD


async def test_a_client_may_send_back_what_it_got(desk):
    session = desk.said[0]["session"]
    assert await desk.update(**session) == session


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        (heard(format={"type": "audio/opus"}), "session.audio.input.format.type"),
        (heard(format={"type": "audio/pcm", "rate": 44_100}), "session.audio.input.format.rate"),
        (heard(format={"type": "audio/pcmu", "rate": 24_000}), "session.audio.input.format.rate"),
        (spoken(format={"type": "audio/pcm", "rate": 8}), "session.audio.output.format.rate"),
        (spoken(voice="nobody"), "session.audio.output.voice"),
        (spoken(speed=3), "session.audio.output.speed"),
        (heard(turn_detection={"type": "semantic_vad"}), "session.audio.input.turn_detection.type"),
        (heard(turn_detection={"type": "loud"}), "session.audio.input.turn_detection.type"),
        (heard(turn_detection={"threshold": 2}), "session.audio.input.turn_detection.threshold"),
        (heard(turn_detection={"eagerness": "low"}),
         "session.audio.input.turn_detection.eagerness"),
        (heard(turn_detection={"patience": 1}), "session.audio.input.turn_detection"),
        (heard(noise_reduction={"type": "near_field"}), "session.audio.input.noise_reduction"),
        (heard(transcription={"language": "klingon"}),
         "session.audio.input.transcription.language"),
        ({"model": "other"}, "model"),
        ({"output_modalities": []}, "session.output_modalities"),
        ({"output_modalities": ["smell"]}, "session.output_modalities[0]"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"max_output_tokens": 2_049}, "session.max_output_tokens"),
        ({"tools": [{"type": "mcp"}]}, "session.tools[0].type"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "session.tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "session.tool_choice"),
        ({"type": "transcription"}, "session.audio.input.transcription"),
        ({"voice": "chelsie"}, "session.voice"),
        ({"input_audio_format": "pcm16"}, "session.input_audio_format"),
        ({"include": ["item.input_audio_transcription.logprobs"]}, "session.include"),
        ({"include": ["message.output_text.logprobs"]}, "session.include"),
        ({"tracing": "auto"}, "session.tracing"),
        ({"prompt": {"id": "p"}}, "session.prompt"),
        ({"nonsense": 1}, "session.nonsense"),
        ({"instructions": 7}, "session.instructions"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
async def test_a_wrong_setting_changes_nothing(desk, settings, param):
    before = desk.session.settings
    wrong = {"instructions": "Leaked.", **settings}
    error = await desk.refused("session.update", session=wrong)
    assert error["param"] == param
    assert desk.session.settings == before
    await desk.write()
    await desk.ask(output_modalities=["text"])
    assert desk.prompt() == [("user", "Hi")]


async def test_old_names_are_explained(desk):
    error = await desk.refused("session.update", session={"voice": "chelsie"})
    assert "session.audio.output.voice" in error["message"]


async def test_a_wrong_response_setting_answers_nothing(desk):
    for wrong, param in (
        ({"output_modalities": ["smell"]}, "response.output_modalities[0]"),
        ({"conversation": "other"}, "response.conversation"),
        ({"input": [{"type": "message"}]}, "response.input[0].role"),
        ({"metadata": {"k" * 65: "v"}}, "response.metadata"),
        ({"nonsense": 1}, "response.nonsense"),
    ):
        error = await desk.refused("response.create", response=wrong)
        assert error["param"] == param
    assert desk.requests == []


async def test_a_voice_that_was_heard_stays(desk):
    await desk.write()
    await desk.ask(output_modalities=["text"])
    await desk.update(**spoken(voice="chelsie"))
    await desk.ask()
    error = await desk.refused("session.update", session=spoken(voice="ethan"))
    assert error["code"] == "cannot_update_voice"
    await desk.update(**spoken(voice="Chelsie"))


async def test_an_uploaded_voice_is_a_voice_until_it_is_deleted(desk):
    pipeline, store = desk.context.pipeline, desk.context.voices.store
    pipeline.info = replace(pipeline.info, clones_voices=VoiceCloning(sample_rates=(16_000,)))
    card = VoiceCard(name="Anna", created_at=1, text="Hello.")
    store.add(UploadedVoice(card, b"sound"))
    session = await desk.update(**spoken(voice={"id": "anna"}))
    assert session["audio"]["output"]["voice"] == "Anna"
    await desk.write()
    said = await desk.ask()
    assert said["audio"]["output"]["voice"] == "Anna"
    part = MediaPart(kind="audio", data=b"sound", param="response.audio.output.voice")
    assert desk.requests[-1].voice_sample == VoiceSample(audio=part, text="Hello.")
    assert desk.requests[-1].params.voice is None
    store.remove("Anna")
    error = await desk.refused("response.create", response={})
    assert error["param"] == "response.audio.output.voice"
    assert (await desk.ask(**spoken(voice="ethan")))["status"] == "completed"


async def test_without_a_speech_model_turns_are_manual(desks, sounds):
    desk = desks("install it")
    assert desk.said[0]["session"]["audio"]["input"]["turn_detection"] is None
    error = await desk.refused(
        "session.update", session=heard(turn_detection={"type": "server_vad"})
    )
    assert "install it" in error["message"]
    await desk.append(sounds.speech(0.2))
    await desk.tell("input_audio_buffer.commit")
    assert (await desk.ask())["status"] == "completed"


async def test_a_model_that_only_writes_refuses_sound_with_the_reason(desks, pipeline, sounds):
    pipeline.info = ModelInfo(context_length=2048, refused_modalities={"audio": "no talker"})
    pipeline.modalities = ("text",)
    desk = desks()
    session = desk.said[0]["session"]
    assert session["output_modalities"] == ["text"]
    assert session["audio"]["input"]["turn_detection"] is None
    error = await desk.refused("session.update", session={"output_modalities": ["audio"]})
    assert "no talker" in error["message"]
    error = await desk.refused("input_audio_buffer.append", audio="AAAA")
    assert "takes no sound" in error["message"]
    await desk.write()
    assert (await desk.ask())["status"] == "completed"


@pytest.mark.parametrize(
    ("audio_format", "rate", "width"),
    [
        ({"type": "audio/pcm", "rate": 24_000}, 24_000, 2),
        ({"type": "audio/pcm", "rate": 16_000}, 16_000, 2),
        ({"type": "audio/pcmu"}, 8_000, 1),
        ({"type": "audio/pcma"}, 8_000, 1),
    ],
)
async def test_formats_in_and_out(desk, kit, sounds, audio_format, rate, width):
    await desk.update(
        audio={
            "input": {"format": audio_format, "turn_detection": None},
            "output": {"format": audio_format},
        }
    )
    sent = sounds.speech(0.5, rate) if width == 2 else np.arange(rate // 2) % 256
    data = sent.astype("<i2" if width == 2 else np.uint8).tobytes()
    for start in range(0, len(data), 321):
        piece = base64.b64encode(data[start : start + 321]).decode()
        await desk.tell("input_audio_buffer.append", audio=piece)
    await desk.tell("input_audio_buffer.commit")
    await desk.ask()
    with wave.open(io.BytesIO(desk.requests[0].messages[0].content[0].data)) as file:
        assert file.getframerate() == rate
        assert file.getnframes() == rate // 2
    deltas = desk.all("response.output_audio.delta")
    made = b"".join(base64.b64decode(event["delta"]) for event in deltas)
    assert len(made) == pytest.approx(width * 1471 * rate / kit.RATE, abs=4)


async def test_the_input_format_changes_between_turns_alone(desk, sounds):
    await desk.append(sounds.speech(0.3))
    error = await desk.refused("session.update", session=heard(format={"type": "audio/pcmu"}))
    assert error["param"] == "session.audio.input.format"
    await desk.append(sounds.silence(0.6))
    await desk.quiet()
    await desk.update(**heard(format={"type": "audio/pcmu"}))
    assert desk.session.settings.audio.input.turn_detection is not None
