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
    Heard,
    aligned,
    correlation,
    hear,
    low_passed,
)
from in_process import Told
from omni_core.types import FloatArray

SPEECH_CUTOFF_HZ = 4_000
NOISE_CORRELATION = 0.97
RESAMPLED_CUTOFF_HZ = 10_000
"""Of 12,000 at 24 kHz; soxr's filter is flat up to 10,950."""
EDGE_S, EDGE_TOLERANCE = 0.05, 0.02
"""At either end a filter rings beyond the file, which cuts that off."""


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


@pytest.mark.parametrize("case", FILES)
def test_a_file_is_what_was_asked_for(
    client: OpenAI, references: dict[str, Told], case: str
) -> None:
    door, name = FILES[case]
    heard = hear(door(client, name), name)
    reference = references["chat" if "chat" in case else "speech"].samples
    assert len(reference) > MODEL_RATE
    assert heard.channels == 1
    if heard.rate != MODEL_RATE and name in BARE:  # which clients take for another
        resampled_is(heard, reference)
        return
    if name in BARE:
        is_exactly(heard.samples, reference)
        return
    expected = FORMATS[name]
    found = (heard.container, heard.codec, heard.rate)
    assert found == (expected.container, expected.codec, expected.rate)
    longer_s = len(heard.samples) / heard.rate - len(reference) / MODEL_RATE
    assert 0 <= longer_s <= CODEC_FRAME_S + expected.priming_s
    if expected.lossless:
        is_exactly(heard.samples, reference)
        return
    one, other = aligned(heard.at(MODEL_RATE), reference)
    assert len(other) == len(reference)
    voices = (low_passed(one, SPEECH_CUTOFF_HZ), low_passed(other, SPEECH_CUTOFF_HZ))
    assert correlation(*voices) > NOISE_CORRELATION


def is_exactly(samples: FloatArray, reference: FloatArray) -> None:
    assert len(samples) == len(reference)
    assert np.abs(samples - reference).max() <= PCM_TOLERANCE


def resampled_is(heard: Heard, reference: FloatArray) -> None:
    """The reference at the rate of what is heard, up to where filters begin to differ."""
    assert len(heard.samples) == round(len(reference) * heard.rate / MODEL_RATE)
    one = low_passed(heard.samples, RESAMPLED_CUTOFF_HZ, heard.rate, heard.rate)
    other = low_passed(reference, RESAMPLED_CUTOFF_HZ, MODEL_RATE, heard.rate)
    difference = np.abs(one - other)[: len(heard.samples)]
    edge = round(EDGE_S * heard.rate)
    assert difference[edge:-edge].max() <= PCM_TOLERANCE
    assert difference.max() <= EDGE_TOLERANCE < np.abs(other).max() / 5


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
