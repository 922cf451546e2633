"""Every file that a client gets, by every door and in every format, opened as a player opens it.

The tiny model's voice is noise, which lossy codecs keep badly: they are held to what lies below
4 kHz, and in `nox -s spoken`, where a real voice speaks, to all of it.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI

from asked import BRIEF, READING, TEXT_AND_AUDIO, VOICE
from heard import (
    BARE,
    CODEC_FRAME_S,
    FORMATS,
    MODEL_RATE,
    PCM_TOLERANCE,
    SPEECH_PCM_RATE,
    aligned,
    correlation,
    hear,
    low_passed,
)
from omni_core.types import FloatArray

SPEECH_CUTOFF_HZ = 4_000
NOISE_CORRELATION = 0.97


def from_chat(client: OpenAI, audio_format: str) -> bytes:
    reply = client.chat.completions.create(
        **BRIEF, modalities=TEXT_AND_AUDIO, audio={"voice": VOICE, "format": audio_format}
    )
    audio = reply.choices[0].message.audio
    assert audio is not None
    return base64.b64decode(audio.data, validate=True)


def from_streamed_chat(client: OpenAI, audio_format: str) -> bytes:
    stream = client.chat.completions.create(
        **BRIEF,
        modalities=TEXT_AND_AUDIO,
        audio={"voice": VOICE, "format": audio_format},
        stream=True,
    )
    data = ""
    for chunk in stream:
        delta = chunk.choices[0].delta.model_dump()
        data += (delta.get("audio") or {}).get("data") or ""
    return base64.b64decode(data, validate=True)


def from_speech(client: OpenAI, audio_format: str) -> bytes:
    return client.audio.speech.create(**READING, response_format=audio_format).read()


def from_streamed_speech(client: OpenAI, audio_format: str) -> bytes:
    speech = client.audio.speech.with_streaming_response
    with speech.create(**READING, response_format=audio_format) as response:
        return b"".join(response.iter_bytes())


def from_speech_events(client: OpenAI, audio_format: str) -> bytes:
    speech = client.audio.speech.with_streaming_response
    with speech.create(**READING, response_format=audio_format, stream_format="sse") as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    *deltas, done = [json.loads(line) for line in lines[:-1]]
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert done["type"] == "speech.audio.done"
    return b"".join(base64.b64decode(delta["audio"], validate=True) for delta in deltas)


Door = Callable[[OpenAI, str], bytes]
CHAT_FORMATS, SPEECH_FORMATS = (*FORMATS, "pcm16"), (*FORMATS, "pcm")
FILES: dict[str, tuple[Door, str]] = {
    **{f"chat {name}": (from_chat, name) for name in CHAT_FORMATS},
    "streamed chat pcm16": (from_streamed_chat, "pcm16"),
    **{f"speech {name}": (from_speech, name) for name in SPEECH_FORMATS},
    **{f"streamed speech {name}": (from_streamed_speech, name) for name in SPEECH_FORMATS},
    **{f"speech events {name}": (from_speech_events, name) for name in SPEECH_FORMATS},
}


@pytest.fixture(scope="module")
def spoken(client: OpenAI) -> dict[str, FloatArray]:
    """The bare samples of the reply and of the reading that all files must have."""
    return {
        "chat": hear(from_chat(client, "pcm16"), "pcm16").samples,
        "speech": hear(from_speech(client, "wav"), "wav").samples,
    }


@pytest.mark.parametrize("case", FILES)
def test_a_file_is_what_was_asked_for(
    client: OpenAI, spoken: dict[str, FloatArray], case: str
) -> None:
    door, name = FILES[case]
    heard = hear(door(client, name), name)
    reference = spoken["chat" if "chat" in case else "speech"]
    assert len(reference) > MODEL_RATE
    assert heard.channels == 1
    if name == "pcm" and MODEL_RATE != SPEECH_PCM_RATE:  # which is fixed
        assert len(heard.samples) == round(len(reference) * SPEECH_PCM_RATE / MODEL_RATE)
        return
    if name in BARE:
        assert len(heard.samples) == len(reference)
        assert np.abs(heard.samples - reference).max() <= PCM_TOLERANCE
        return
    expected = FORMATS[name]
    found = (heard.container, heard.codec, heard.rate)
    assert found == (expected.container, expected.codec, expected.rate)
    longer_s = len(heard.samples) / heard.rate - len(reference) / MODEL_RATE
    assert 0 <= longer_s <= CODEC_FRAME_S + expected.priming_s
    if expected.lossless:
        assert len(heard.samples) == len(reference)
        assert np.abs(heard.samples - reference).max() <= PCM_TOLERANCE
        return
    one, other = aligned(heard.at(MODEL_RATE), reference)
    assert len(other) == len(reference)
    voices = (low_passed(one, SPEECH_CUTOFF_HZ), low_passed(other, SPEECH_CUTOFF_HZ))
    assert correlation(*voices) > NOISE_CORRELATION


@pytest.mark.parametrize("case", [case for case, (_, name) in FILES.items() if name in FORMATS])
def test_ffprobe_agrees(client: OpenAI, tmp_path: Path, case: str) -> None:
    ffprobe = shutil.which("ffprobe")
    if ffprobe is None:
        pytest.skip("no ffprobe on PATH; install ffmpeg")
    door, name = FILES[case]
    file = tmp_path / f"speech.{name}"
    file.write_bytes(door(client, name))
    shown = ("-v", "error", "-show_streams", "-show_format", "-of", "json")
    run = subprocess.run([ffprobe, *shown, str(file)], capture_output=True, check=True, text=True)
    assert not run.stderr
    probed = json.loads(run.stdout)
    [track] = probed["streams"]
    expected = FORMATS[name]
    assert probed["format"]["format_name"] == expected.container
    assert track["codec_name"] == expected.codec.removesuffix("float")
    assert int(track["sample_rate"]) == expected.rate
    assert track["channels"] == 1
