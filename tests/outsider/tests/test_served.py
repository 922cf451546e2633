"""The instrument behind `omni serve`, heard with OpenAI's own client."""

from __future__ import annotations

import base64
import io
import json
import signal
import subprocess
import sys
import urllib.request
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from omni_pianola.instrument import MAX_LETTERS, Instrument, name_of

OMNI = str(Path(sys.executable).with_name("omni"))
READY = "Omni is ready on "
WITHIN_S = 60.0
STRIP_BYTES = 128 * 40 * 8


def omni(*arguments: str) -> str:
    """What a command of omni prints."""
    return subprocess.run(
        [OMNI, *arguments], check=True, capture_output=True, text=True, timeout=WITHIN_S
    ).stdout


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("models") / "upright"
    omni("tiny", "pianola", str(directory))
    return str(directory)


@pytest.fixture(scope="module")
def url(checkpoint: str) -> Iterator[str]:
    command = [OMNI, "serve", "--port", "0", "--model-path", checkpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [""]
        while not lines[-1].startswith(READY):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        yield lines[-1].removeprefix(READY).strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0


@pytest.fixture
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WITHIN_S)


def ask(text: str) -> dict:
    return {"model": "upright", "messages": [{"role": "user", "content": text}]}


def tune(letters: str) -> str:
    return "".join(f"{name_of(Instrument().note(letter))} " for letter in letters)


def stages(url: str) -> dict:
    with urllib.request.urlopen(f"{url}/health") as response:
        return json.load(response)["stages"]


def pitches(pcm: bytes) -> list[int]:
    """The MIDI number of each letter's 0.2 s of sound."""
    samples = np.frombuffer(pcm, dtype="<i2").reshape(-1, 3200)
    peaks_hz = np.abs(np.fft.rfft(samples, 16 * 3200)).argmax(axis=1) * 16_000 / (16 * 3200)
    return [round(69 + 12 * np.log2(peak / 440)) for peak in peaks_hz]


def test_text(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ask("Piano"), modalities=["text"])
    assert reply.choices[0].message.content == tune("Piano")
    assert reply.usage.completion_tokens == 5


def test_audio(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        **ask("Hello"), modalities=["text", "audio"], audio={"format": "wav", "voice": "upright"}
    )
    audio = reply.choices[0].message.audio
    assert audio.transcript == tune("Hello")
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert file.getframerate() == 16_000
        pcm = file.readframes(file.getnframes())
    assert pitches(pcm) == [Instrument().note(letter) for letter in "Hello"]


def test_streamed_audio(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        **ask("abcdef"), modalities=["text", "audio"], audio={"format": "pcm16"}, stream=True
    )
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    audio = [delta["audio"] for delta in deltas if delta.get("audio")]
    pcm = b"".join(base64.b64decode(piece["data"]) for piece in audio if piece.get("data"))
    assert pitches(pcm) == [Instrument().note(letter) for letter in "abcdef"]
    assert "".join(piece.get("transcript") or "" for piece in audio) == tune("abcdef")


def test_too_long_a_tune_is_a_400(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(**ask("a" * (MAX_LETTERS + 1)))
    assert caught.value.code == "context_length_exceeded"


def test_stages_run_in_two_processes(url: str) -> None:
    pids = {stage["pid"] for stage in stages(url).values()}
    assert set(stages(url)) == {"composer", "roll"}
    assert len(pids) == 2


def test_the_roll_travels_through_shared_memory(client: OpenAI, url: str) -> None:
    letters = "shared"
    lent, in_use = counted(url, "omni_relay_bytes_lent"), counted(url, "omni_relay_slots_used")
    reply = client.chat.completions.create(**ask(letters), modalities=["audio"])
    assert reply.choices[0].message.audio.transcript == tune(letters)
    assert counted(url, "omni_relay_bytes_lent") - lent == len(letters) * STRIP_BYTES
    assert counted(url, "omni_relay_slots_used") == in_use == 0


def counted(url: str, name: str) -> float:
    """The sum of a metric over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=WITHIN_S) as answer:
        lines = answer.read().decode().splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")]
    assert values, f"no {name} among {lines}"
    return sum(values)


def test_commands_know_the_plugin(checkpoint: str) -> None:
    listed = {plugin["name"]: plugin for plugin in json.loads(omni("plugins", "--json"))}
    mine = listed["pianola"]
    assert (mine["distribution"], mine["version"]) == ("omni-pianola", "0.3.0")
    assert mine["hooks"] == ["register_pipelines"]
    [pipeline] = mine["pipelines"]
    assert pipeline["architectures"] == ["Pianola"]
    assert pipeline["variants"] == {"speech": ["composer", "roll"]}
    drawn = omni("graph", "--model-path", checkpoint)
    assert "composer" in drawn
    assert "roll" in drawn
