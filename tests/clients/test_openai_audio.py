"""openai-python's audio clients, against a live server: speech, transcriptions, translations."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent

from asked import BRIEF, MODEL, READING, RECORDINGS, VOICE, recorded, tone
from families import FAMILY
from heard import PCM_TOLERANCE, hear
from in_process import Told

SECONDS = 1.5
UPLOAD_PRECISION_S = 0.08
"""Codecs pad a recording to whole frames."""


@pytest.fixture(scope="module")
def clip() -> bytes:
    return recorded(tone(SECONDS), "wav")


def transcribed(client: OpenAI, file: Any, **asked: Any) -> Any:
    """What the model writes, the same each time."""
    known: dict[str, Any] = {"model": MODEL, "language": "en", "extra_body": {"max_tokens": 16}}
    return client.audio.transcriptions.create(file=file, **{**known, **asked})


def test_speech_as_people_save_it(
    client: OpenAI, references: dict[str, Told], tmp_path: Path
) -> None:
    expected = references["speech"].samples
    saved = {name: tmp_path / f"{name}.wav" for name in ("written", "streamed", "pieces")}
    speech = client.audio.speech.create(**READING, response_format="wav")
    speech.write_to_file(saved["written"])
    with client.audio.speech.with_streaming_response.create(
        **READING, response_format="wav"
    ) as response:
        assert response.headers["content-type"] == "audio/wav"
        response.stream_to_file(saved["streamed"])
    pieces = client.audio.speech.create(**READING, response_format="wav").iter_bytes(1_000)
    saved["pieces"].write_bytes(b"".join(pieces))
    for path in saved.values():
        heard = hear(path.read_bytes(), "wav").samples
        assert len(heard) == len(expected)
        assert np.abs(heard - expected).max() <= PCM_TOLERANCE


@pytest.mark.skipif(not FAMILY.clones_voices, reason="the model clones no voices")
def test_a_voice_is_created_spoken_with_and_deleted(client: OpenAI, clip: bytes) -> None:
    voice = client.audio.voices.create(
        name="My new voice", audio_sample=("a.wav", clip, "audio/wav"), consent="cons_1234"
    )
    assert (voice.object, voice.name, voice.type) == ("audio.voice", "My new voice", "audio_sample")
    asked: Any = {**READING, "response_format": "wav"}
    with_it = hear(
        client.audio.speech.create(**{**asked, "voice": {"id": voice.id}}).content, "wav"
    )
    without = hear(client.audio.speech.create(**asked).content, "wav")
    few = min(len(with_it.samples), len(without.samples))
    assert np.abs(with_it.samples[:few] - without.samples[:few]).max() > 0.01
    assert client.audio.voices.delete(voice.id).deleted
    with pytest.raises(NotFoundError):
        client.audio.voices.delete(voice.id)


async def test_sentences_are_spoken_at_once_by_the_asynchronous_client(
    client: OpenAI, async_client: AsyncOpenAI
) -> None:
    async def read(text: str) -> bytes:
        asked = {**READING, "input": text, "response_format": "pcm"}
        speech = async_client.audio.speech.with_streaming_response
        async with speech.create(**asked) as response:
            return b"".join([piece async for piece in response.iter_bytes()])

    sentences = ["It is one.", "It is two!", "Is it three?"]
    together = await asyncio.gather(*map(read, sentences))
    for text, data in zip(sentences, together, strict=True):
        asked = {**READING, "input": text, "response_format": "pcm"}
        alone = hear(client.audio.speech.create(**asked).content, "pcm").samples
        heard = hear(data, "pcm").samples
        assert len(heard) == len(alone)
        assert np.abs(heard - alone).max() <= PCM_TOLERANCE


def test_speech_defaults_to_mp3_and_has_a_voice_by_reference(client: OpenAI) -> None:
    speech = client.audio.speech.create(**{**READING, "voice": {"id": VOICE.upper()}})
    assert speech.response.headers["content-type"] == "audio/mpeg"
    assert hear(speech.content, "mp3").codec == "mp3float"


def test_twice_as_fast_is_half_as_long(client: OpenAI) -> None:
    once, twice = [
        len(client.audio.speech.create(**READING, response_format="pcm", speed=speed).content)
        for speed in (1.0, 2.0)
    ]
    assert twice == pytest.approx(once / 2, rel=0.05)


def test_every_kind_of_upload(client: OpenAI, clip: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    path.write_bytes(clip)
    named = io.BytesIO(clip)
    named.name = "clip.wav"
    with path.open("rb") as opened:
        uploads = {
            "bytes": clip,
            "path": path,
            "open file": opened,
            "buffer with a name": named,
            "name and bytes": ("clip.wav", clip),
            "name, bytes and type": ("blob", clip, "audio/webm;codecs=opus"),
            "with headers": ("ünï.wav", clip, "audio/wav", {"x-part": "1"}),
            "no name": (None, clip),
        }
        said = {kind: transcribed(client, upload).text for kind, upload in uploads.items()}
    assert said["bytes"]
    assert set(said.values()) == {said["bytes"]}


@pytest.mark.parametrize("kind", RECORDINGS)
def test_every_format_of_upload(client: OpenAI, kind: str) -> None:
    file = (f"clip.{kind}", recorded(tone(SECONDS), kind))
    reply = transcribed(client, file, response_format="verbose_json")
    assert reply.text
    assert reply.duration == pytest.approx(SECONDS, abs=UPLOAD_PRECISION_S)


def test_every_response_format(client: OpenAI, clip: bytes) -> None:
    expected = transcribed(client, clip).text
    assert expected
    assert transcribed(client, clip, response_format="text") == expected
    line = " ".join(expected.split())
    assert transcribed(client, clip, response_format="srt") == (
        f"1\n00:00:00,000 --> 00:00:01,500\n{line}\n"
    )
    assert transcribed(client, clip, response_format="vtt").startswith(
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\n"
    )
    verbose = transcribed(
        client, clip, response_format="verbose_json", timestamp_granularities=["segment"]
    )
    [segment] = verbose.segments
    assert (segment.start, segment.end, segment.text) == (0, SECONDS, expected)
    assert verbose.usage.seconds == SECONDS


async def test_a_stream_of_typed_events(
    client: OpenAI, async_client: AsyncOpenAI, clip: bytes
) -> None:
    expected = transcribed(client, clip)
    stream = await async_client.audio.transcriptions.create(
        file=clip, model=MODEL, language="en", stream=True, extra_body={"max_tokens": 16}
    )
    *deltas, done = [event async for event in stream]
    assert len(deltas) > 1
    assert {type(event) for event in deltas} == {TranscriptionTextDeltaEvent}
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert "".join(event.delta for event in deltas) == done.text == expected.text
    assert done.usage is not None
    assert done.usage.output_tokens == expected.usage.output_tokens


def test_raw_and_streamed_transcriptions(client: OpenAI, clip: bytes) -> None:
    raw = client.audio.transcriptions.with_raw_response.create(
        file=clip, model=MODEL, language="en", extra_body={"max_tokens": 16}
    )
    assert raw.parse().text == transcribed(client, clip).text
    assert raw.request_id
    with client.audio.transcriptions.with_streaming_response.create(
        file=clip, model=MODEL, language="en", stream=True, extra_body={"max_tokens": 16}
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["type"] == "transcript.text.done"


@pytest.mark.parametrize("response_format", ["json", "text", "srt", "vtt", "verbose_json"])
def test_translations(client: OpenAI, clip: bytes, response_format: str) -> None:
    reply = client.audio.translations.create(
        file=clip, model=MODEL, response_format=response_format, extra_body={"max_tokens": 8}
    )  # type: ignore[call-overload]
    match response_format:
        case "json":
            assert reply.text
        case "verbose_json":
            assert (reply.language, reply.duration) == ("english", SECONDS)
        case "text":
            assert isinstance(reply, str)
            assert reply
        case "srt" | "vtt":
            assert " --> " in reply


def test_what_is_spoken_can_be_written_down_and_asked_about(client: OpenAI) -> None:
    """Each output is an input of the other doors."""
    spoken = client.audio.speech.create(**READING, response_format="mp3").content
    assert transcribed(client, ("speech.mp3", spoken), response_format="verbose_json").duration > 1
    sound = {"data": base64.b64encode(spoken).decode(), "format": "mp3"}
    parts = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": "What?"}]
    asked = {**BRIEF, "messages": [{"role": "user", "content": parts}]}
    reply = client.chat.completions.create(**asked)
    assert reply.choices[0].message.content
    assert reply.usage.prompt_tokens_details.audio_tokens > 10
