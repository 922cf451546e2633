"""LiveKit's OpenAI plugin as a voice agent uses it: TTS, STT and LLM.

It has an environment of its own, whose Python `nox -s clients` names in OMNI_LIVEKIT.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from openai import OpenAI

from asked import KEY, MODEL, REQUEST_DEADLINE_S, VOICE
from heard import CODEC_FRAME_S, FORMATS, MODEL_RATE, PCM_TOLERANCE, hear

PYTHON = "OMNI_LIVEKIT"
TEXT = "What is two plus two?"
STT_RATE = 16_000
ROOM_FRAME_S = 0.2
"""LiveKit fills its last frame with silence."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("livekit") / "clip.wav"
    t = np.arange(STT_RATE) / STT_RATE
    soundfile.write(path, 0.4 * np.sin(2 * np.pi * (200 + 300 * t) * t), STT_RATE)
    return path


@pytest.fixture(scope="module")
def made(served: str, recording: Path) -> dict[str, Any]:
    """What `livekit_calls.py` prints."""
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"no LiveKit: `nox -s clients` names its Python in {PYTHON}")
    script = Path(__file__).with_name("livekit_calls.py")
    words = (f"{served}/v1", KEY, MODEL, VOICE, str(recording), TEXT)
    run = subprocess.run(
        [python, "-I", str(script), *words], capture_output=True, timeout=REQUEST_DEADLINE_S
    )
    assert run.returncode == 0, run.stderr.decode()
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


@pytest.mark.parametrize("name", ["pcm", "wav", "mp3"])
def test_what_a_room_would_play(made: dict[str, Any], client: OpenAI, name: str) -> None:
    """The plugin takes everything for 24 kHz mono, and asks for mp3 unless told otherwise."""
    frame = made[name]
    assert (frame["rate"], frame["channels"]) == (MODEL_RATE, 1)
    played = hear(base64.b64decode(frame["pcm"]), "pcm").samples
    speech = client.audio.speech.create(model=MODEL, input=TEXT, voice=VOICE, response_format="pcm")
    expected = hear(speech.content, "pcm").samples
    if name == "mp3":
        longer_s = (len(played) - len(expected)) / MODEL_RATE
        assert 0 <= longer_s <= CODEC_FRAME_S + FORMATS["mp3"].priming_s
        return
    assert np.abs(played[: len(expected)] - expected).max() <= PCM_TOLERANCE
    filled = played[len(expected) :]
    assert len(filled) < ROOM_FRAME_S * MODEL_RATE
    assert not filled.any()


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
