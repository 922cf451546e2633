"""The requests of Open WebUI, by curl.

Their shapes are those of its backend's audio and OpenAI routers: one speech request for each
sentence, recordings of the browser with little beside the file, the voices without a key, chats
that stream, and tasks such as titles that do not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

from asked import KEY, MODEL, REQUEST_DEADLINE_S, VOICE, recorded, tone
from heard import CODEC_FRAME_S, FORMATS, SPEECH_PCM_RATE, hear

USER = {
    "X-OpenWebUI-User-Name": "J%C3%B6rg",
    "X-OpenWebUI-User-Id": "5f0c",
    "X-OpenWebUI-User-Email": "joerg@localhost",
    "X-OpenWebUI-User-Role": "user",
}
ANSWER = "curl-answer"


@dataclass(frozen=True, slots=True)
class Answer:
    """What curl got."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Curl:
    """curl with the address and the key that an administrator gives Open WebUI."""

    url: str

    def __call__(self, path: str, *options: str, key: str | None = KEY) -> Answer:
        """Ask."""
        shown = f"\n{ANSWER} %{{http_code}} %{{content_type}}"
        command = ["curl", "-sS", "--max-time", str(REQUEST_DEADLINE_S), "-w", shown]
        headers = USER if key is None else {**USER, "Authorization": f"Bearer {key}"}
        command += [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        run = subprocess.run([*command, *options, self.url + path], capture_output=True, check=True)
        body, _, last = run.stdout.rpartition(f"\n{ANSWER} ".encode())
        status, _, content_type = last.decode().partition(" ")
        return Answer(int(status), content_type, body)

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Ask with JSON."""
        sent = ("-H", "Content-Type: application/json", "--data-binary", json.dumps(body))
        return self(path, *sent)


@pytest.fixture(scope="module")
def curl(served: str) -> Curl:
    if shutil.which("curl") is None:
        pytest.skip("no curl on PATH")
    return Curl(f"{served}/v1")


def test_models_and_voices(curl: Curl) -> None:
    assert [model["id"] for model in curl("/models").json()["data"]] == [MODEL]
    listed = curl("/audio/voices", key=None).json()["voices"]
    assert VOICE in {voice["id"] for voice in listed} | {voice["id"].lower() for voice in listed}
    assert all(voice["name"] for voice in listed)
    assert curl("/models", key=None).status == 401


def test_sentences_of_a_reply_are_read_at_once(curl: Curl, client: OpenAI) -> None:
    def read(text: str) -> Answer:
        asked = {"input": text, "voice": VOICE, "model": MODEL, "seed": 1}  # for the comparison
        return curl.post("/audio/speech", asked)

    sentences = ["Hello there.", "I have 3 cats, and a dog!", "Do you?", "\U0001f600 Nice."]
    with ThreadPoolExecutor(len(sentences)) as pool:
        answers = list(pool.map(read, sentences))
    for text, answer in zip(sentences, answers, strict=True):
        assert (answer.status, answer.content_type) == (200, "audio/mpeg")
        heard = hear(answer.body, "mp3")
        pcm = client.audio.speech.create(
            model=MODEL, input=text, voice=VOICE, response_format="pcm", extra_body={"seed": 1}
        ).content
        spoken_s = len(pcm) / 2 / SPEECH_PCM_RATE
        longer_s = len(heard.samples) / heard.rate - spoken_s
        assert 0 <= longer_s <= CODEC_FRAME_S + FORMATS["mp3"].priming_s
        assert np.abs(heard.samples).max() > 0


def test_a_voice_there_is_not(curl: Curl) -> None:
    answer = curl.post("/audio/speech", {"input": "Hello.", "voice": "alloy", "model": MODEL})
    assert answer.status == 400
    assert VOICE.lower() in answer.json()["error"]["message"].lower(), "it is shown"


@pytest.mark.parametrize(
    ("kind", "live", "media_type"),
    [
        ("webm", True, "audio/webm;codecs=opus"),
        ("webm", True, "video/webm"),
        ("mp4", False, "audio/mp4"),
        ("mp3", False, "application/octet-stream"),
        ("wav", False, "audio/wav"),
    ],
)
@pytest.mark.parametrize("language", [None, "en"])
def test_recordings_of_a_browser(
    curl: Curl, tmp_path: Path, kind: str, live: bool, media_type: str, language: str | None
) -> None:
    """With language and, where that fails, without."""
    path = tmp_path / f"0b6f1c1e.{kind}"
    path.write_bytes(recorded(tone(1.2), kind, live=live))
    fields = ["-F", f"file=@{path};type={media_type}", "-F", f"model={MODEL}"]
    if language:
        fields += ["-F", f"language={language}"]
    answer = curl("/audio/transcriptions", *fields)
    assert (answer.status, answer.content_type) == (200, "application/json"), answer.body
    assert answer.json()["text"]


def test_a_chat_that_streams(curl: Curl) -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Tell me about the sea."}]},
    ]
    payload = {"model": MODEL, "messages": said, "max_tokens": 12}
    whole = curl.post("/chat/completions", {**payload, "stream": False}).json()
    streamed = {
        **payload,
        "stream": True,
        "stream_options": {"include_usage": True},
        "session_id": "a",
        "chat_id": "b",
        "features": {"web_search": False},
        "logit_bias": {},
    }
    answer = curl.post("/chat/completions", streamed)
    assert answer.content_type.startswith("text/event-stream")
    lines = [line for line in answer.body.decode().splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    pieces = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    [usage] = [chunk["usage"] for chunk in chunks if chunk["usage"]]
    assert usage["total_tokens"] == whole["usage"]["total_tokens"]


def test_a_title(curl: Curl) -> None:
    task = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "### Task:\nGenerate a title."}],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    answer = curl.post("/chat/completions", task)
    assert answer.status == 200
    assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")
