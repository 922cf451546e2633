"""LiveKit's OpenAI plugin as a voice agent uses it: TTS, STT and LLM.

It has an environment of its own, whose Python OMNI_LIVEKIT names.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from openai import OpenAI

from asked import KEY, MODEL, REQUEST_DEADLINE_S, VOICE
from heard import PCM_TOLERANCE, aligned, correlation, hear, low_passed
from omni_core.types import FloatArray
from relay import Relay, relay_before

PYTHON = "OMNI_LIVEKIT"
TEXT = "What is two plus two?"
STT_RATE, ROOM_RATE = 16_000, 24_000
CUTOFF_HZ, EDGE_S = 8_000, 0.05
"""Below it and within the file, the plugin's resampler and ours agree."""
MP3_FRAME_S, MP3_CORRELATION = 1_152 / 44_100, 0.99
ROOM_FRAME_S = 0.2
"""LiveKit fills its last frame with silence."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("livekit") / "clip.wav"
    t = np.arange(STT_RATE) / STT_RATE
    soundfile.write(path, 0.4 * np.sin(2 * np.pi * (200 + 300 * t) * t), STT_RATE)
    return path


@pytest.fixture(scope="module")
def relay(served: str) -> Iterator[Relay]:
    with relay_before(served, REQUEST_DEADLINE_S) as relay:
        yield relay


@pytest.fixture(scope="module")
def made(served: str, relay: Relay, recording: Path) -> dict[str, Any]:
    """What `livekit_calls.py` prints."""
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"no LiveKit: `nox -s clients_apart` names its Python in {PYTHON}")
    script = Path(__file__).with_name("livekit_calls.py")
    words = (f"{served}/v1", KEY, MODEL, VOICE, str(recording), TEXT, f"{relay.url}/v1")
    run = subprocess.run(
        [python, "-I", str(script), *words], capture_output=True, timeout=REQUEST_DEADLINE_S
    )
    assert run.returncode == 0, run.stderr.decode()
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


@pytest.mark.parametrize("name", ["pcm", "wav", "mp3"])
def test_what_a_room_would_play(made: dict[str, Any], relay: Relay, name: str) -> None:
    """The plugin makes 24 kHz of every file, and asks for mp3 unless told otherwise."""
    frame, given = made[name], hear(relay.speech(name), name)
    assert (frame["rate"], frame["channels"]) == (ROOM_RATE, 1)
    played = hear(base64.b64decode(frame["pcm"]), "pcm").samples
    n = round(len(given.samples) * ROOM_RATE / given.rate)
    if name == "mp3":  # of which the plugin's decoder drops a frame
        assert 0 <= n - len(played) <= MP3_FRAME_S * ROOM_RATE + 1
        one, other = aligned(given.at(ROOM_RATE), played)
        assert len(one) == len(played)
        assert correlation(heard_below(one), heard_below(other)) > MP3_CORRELATION
        return
    expected = low_passed(given.samples, CUTOFF_HZ, given.rate, ROOM_RATE)
    edge = round(EDGE_S * ROOM_RATE)
    difference = np.abs(heard_below(played[:n]) - expected)
    assert difference[edge : n - edge].max() <= PCM_TOLERANCE
    filled = played[n:]
    assert len(filled) < ROOM_FRAME_S * ROOM_RATE
    assert not filled.any()


def heard_below(samples: FloatArray) -> FloatArray:
    return low_passed(samples, CUTOFF_HZ, ROOM_RATE, ROOM_RATE)


def test_a_final_transcript(made: dict[str, Any], client: OpenAI, recording: Path) -> None:
    known = client.audio.transcriptions.create(file=recording, model=MODEL, language="en")
    assert made["stt"] == {"type": "final_transcript", "text": known.text}
    assert known.text


def test_a_reply_is_streamed(made: dict[str, Any], client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": TEXT},
    ]
    known = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=12)
    assert "".join(made["llm"]["pieces"]) == known.choices[0].message.content
    assert known.usage is not None
    assert made["llm"]["total_tokens"] == known.usage.total_tokens


def test_refusals_have_their_status(made: dict[str, Any]) -> None:
    assert made["no voice"]["status"] == 400
    assert "alloy" in made["no voice"]["message"]
    assert made["no model"]["status"] == 404
