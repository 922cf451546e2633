"""A parrot behind `omni serve`, and the ways to ask it."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openai import OpenAI
from websockets.sync.client import ClientConnection, connect

from omni_core.media.encode import wav_bytes
from omni_core.types import FloatArray

READY = "Omni is ready on "
WITHIN_S = 60.0
REALTIME_HZ = 24_000


@contextmanager
def serving(checkpoint: str) -> Iterator[str]:
    """The URL of a server of its own."""
    command = [sys.executable, "-m", "omni_server", "serve", "--port", "0"]
    command += ["--model-path", checkpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [""]
        while not lines[-1].startswith(READY):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        yield lines[-1].removeprefix(READY).strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0


@dataclass
class Heard:
    """A spoken reply as it came."""

    text: str = ""
    sound: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    came_s: list[float] = field(default_factory=list)
    """When each piece of sound came, since the question was sent."""
    timeline: dict[str, Any] = field(default_factory=dict)
    """{stage: span}."""

    def take(self, data: str, began_s: float) -> None:
        self.came_s.append(time.monotonic() - began_s)
        self.sound = np.concatenate([self.sound, floats(base64.b64decode(data))])


def floats(pcm: bytes) -> FloatArray:
    """16-bit samples as float32."""
    return np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32_768


def pcm16(sound: FloatArray) -> np.ndarray[Any, np.dtype[np.int16]]:
    """float32 samples as 16-bit ones."""
    return (np.clip(sound, -1, 1) * 32_767).astype(np.int16)


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WITHIN_S)


def by_chat(url: str, sound: FloatArray, rate: int, voice: str = "heart") -> Heard:
    """A clip in a chat, answered in a stream."""
    heard, began_s = Heard(), time.monotonic()
    clip = base64.b64encode(wav_bytes(pcm16(sound), rate)).decode()
    part = {"type": "input_audio", "input_audio": {"data": clip, "format": "wav"}}
    chunks = client_of(url).chat.completions.create(
        model="parrot",
        messages=[{"role": "user", "content": [part]}],
        modalities=["text", "audio"],
        audio={"voice": voice, "format": "pcm16"},
        stream=True,
        extra_body={"include_timeline": True},
    )
    for chunk in chunks:
        extra = chunk.model_extra or {}
        heard.timeline |= {span["stage"]: span for span in extra.get("timeline") or ()}
        audio = chunk.choices[0].delta.model_dump().get("audio") or {}
        heard.text += audio.get("transcript") or ""
        if audio.get("data"):
            heard.take(audio["data"], began_s)
    return heard


@contextmanager
def talking(url: str) -> Iterator[Talk]:
    """A realtime session."""
    with connect(f"{url.replace('http', 'ws', 1)}/v1/realtime?model=parrot") as socket:
        yield Talk(socket)


class Talk:
    """A session without turn detection: each sentence is committed and answered."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._wait_for("session.created")
        heard = {"turn_detection": None, "format": {"type": "audio/pcm", "rate": REALTIME_HZ}}
        session = {"type": "realtime", "audio": {"input": heard}}
        self._tell({"type": "session.update", "session": session})
        self._wait_for("session.updated")

    def say(self, sound: FloatArray) -> Heard:
        """Samples at `REALTIME_HZ`, and what is answered."""
        heard, began_s = Heard(), time.monotonic()
        clip = base64.b64encode(pcm16(sound).tobytes()).decode()
        self._tell({"type": "input_audio_buffer.append", "audio": clip})
        self._tell({"type": "input_audio_buffer.commit"})
        self._tell({"type": "response.create", "response": {"include_timeline": True}})
        while True:
            event = json.loads(self._socket.recv(WITHIN_S))
            match event["type"]:
                case "response.output_audio_transcript.delta":
                    heard.text += event["delta"]
                case "response.output_audio.delta":
                    heard.take(event["delta"], began_s)
                case "response.done":
                    assert event["response"]["status"] == "completed", event
                    spans = event["response"]["timeline"]
                    heard.timeline = {span["stage"]: span for span in spans}
                    return heard
                case "error":
                    raise AssertionError(event)

    def _tell(self, event: dict[str, Any]) -> None:
        self._socket.send(json.dumps(event))

    def _wait_for(self, name: str) -> None:
        event = json.loads(self._socket.recv(WITHIN_S))
        assert event["type"] == name, event


def metric(url: str, name: str, stage: str) -> float:
    """A number of one stage, as operators read it."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=WITHIN_S) as answer:
        lines = answer.read().decode().splitlines()
    values = [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(f"{name}{{") and f'stage="{stage}"' in line
    ]
    assert values, [line for line in lines if stage in line]
    return sum(values)
