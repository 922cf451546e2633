"""LiveKit's OpenAI realtime plugin, as a voice agent uses it.

It has an environment of its own, whose Python OMNI_LIVEKIT names.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asked import KEY, MODEL, REQUEST_DEADLINE_S, VOICE

PYTHON = "OMNI_LIVEKIT"
RATE = 24_000


@pytest.fixture(scope="module")
def talked(served: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `livekit_talks.py` prints."""
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"no LiveKit: name its Python in {PYTHON}")
    clip = tmp_path_factory.mktemp("livekit") / "clip.wav"
    soundfile.write(clip, 0.4 * np.sin(np.arange(RATE) * 0.1), RATE)
    script = Path(__file__).with_name("livekit_talks.py")
    words = (f"{served}/v1", KEY, MODEL, VOICE, str(clip))
    run = subprocess.run(
        [python, "-I", str(script), *words], capture_output=True, timeout=REQUEST_DEADLINE_S
    )
    assert run.returncode == 0, run.stderr.decode()
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


def test_a_spoken_turn_is_answered_and_interrupted(talked: dict[str, Any]) -> None:
    first, second = talked["first"], talked["second"]
    assert first["samples"] >= 4_800
    assert first["text"]
    assert second["samples"] >= 4_800
    assert first["id"] != second["id"]


def test_nothing_was_refused(talked: dict[str, Any]) -> None:
    kinds = talked["kinds"]
    assert "error" not in kinds
    assert "conversation.item.truncated" in kinds
    assert kinds.count("response.done") == 2
    assert kinds.count("input_audio_buffer.committed") == 1
