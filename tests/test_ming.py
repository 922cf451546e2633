"""Ming-flash-omni over HTTP: the authors' greedy tokens, and speech that is the same however it is
asked for.

The goldens are omni-ming's own (packages/omni-ming/tests/golden): outputs of the authors' modules.
"""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from golden_files import arrays
from PIL import Image

from omni_core.text.detokenize import TokenBytes
from omni_core.types import FloatArray
from omni_ming import tiny

TOKENS = 12
RATE = 44_100
SAID = "Hello, world! This is a test of the speech system. 今天天气很好，我们去公园吧！"
Asked = dict[str, Any]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = tmp_path_factory.mktemp("ming")
    tiny.build(str(directory))
    return str(directory)


Serving = Callable[[], AbstractContextManager[httpx.Client]]


@pytest.fixture(scope="module")
def serving(
    live_server: Callable[..., AbstractContextManager[httpx.Client]],
    checkpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Serving:
    """Servers that share a directory of voices."""
    engines = ("--talker_stream.ar_engine", "torch")  # the one it knows, whatever is asked for all
    voices = ("--voices-dir", str(tmp_path_factory.mktemp("voices")))
    return partial(live_server, checkpoint, "--served-model-name", "ming", *engines, *voices)


@pytest.fixture(scope="module")
def server(serving: Serving) -> Iterator[httpx.Client]:
    with serving() as client:
        yield client


def picture() -> Asked:
    """The golden's, as a PNG of its own size."""
    file = io.BytesIO()
    Image.fromarray(arrays("towers")["image_u8"]).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


CONTENT: dict[str, Any] = {
    "text": "hello, 你好 world",
    "image": [picture(), {"type": "text", "text": "what is this?"}],
}


def chat(server: httpx.Client, content: Any, **more: Any) -> Asked:
    body = {"model": "ming", "messages": [{"role": "user", "content": content}], **more}
    answer = server.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    made: Asked = answer.json()
    return made


def tokens(reply: Asked) -> list[bytes]:
    """What was said, token by token: the bytes of each."""
    return [bytes(token["bytes"] or []) for token in reply["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize("case", CONTENT)
@pytest.mark.parametrize("in_flight", [1, 8])
def test_greedy_tokens(case: str, in_flight: int, server: httpx.Client, checkpoint: str) -> None:
    spelled = TokenBytes(checkpoint)
    expected = [spelled.spelling(t) for t in arrays("thinker")[f"{case}.greedy_tokens"].tolist()]

    def ask(_: int) -> list[bytes]:
        return tokens(chat(server, CONTENT[case], max_tokens=TOKENS, logprobs=True))

    with ThreadPoolExecutor(in_flight) as threads:
        for made in threads.map(ask, range(in_flight)):
            assert made == expected


def read_aloud(server: httpx.Client, **more: Any) -> bytes:
    body = {"model": "ming", "input": SAID, "response_format": "wav", "seed": 7, **more}
    answer = server.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    return answer.content


def samples(wav: bytes) -> FloatArray:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        pcm = np.frombuffer(file.readframes(len(wav)), "<i2")
    return pcm.astype(np.float32) / 32768


def test_a_seed_is_a_sound_whoever_else_speaks(server: httpx.Client) -> None:
    alone = samples(read_aloud(server))
    assert len(alone) > RATE
    assert np.abs(alone).max() > 0.01
    with ThreadPoolExecutor(8) as threads:
        others = [threads.submit(read_aloud, server, seed=seed) for seed in range(7)]
        again = samples(threads.submit(read_aloud, server).result())
        different = [samples(other.result()) for other in others]
    assert again.shape == alone.shape
    assert np.abs(again - alone).max() <= 2 / 32768  # 1e-5 may round otherwise
    assert all(len(one) != len(alone) or np.abs(one - alone).max() > 0.01 for one in different)


def streamed_audio(server: httpx.Client, body: Asked) -> bytes:
    parts: list[bytes] = []
    with server.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    audio = choice["delta"].get("audio") or {}
                    parts.append(base64.b64decode(audio.get("data") or ""))
    return b"".join(parts)


def test_streamed_speech_is_the_same(server: httpx.Client) -> None:
    asked: Asked = {
        "model": "ming",
        "messages": [{"role": "user", "content": "say it"}],
        "max_tokens": 40,
        "seed": 3,
        "modalities": ["text", "audio"],
        "audio": {"voice": "lingguang", "format": "pcm16"},
    }
    whole = server.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["audio"]
    expected = np.frombuffer(base64.b64decode(whole["data"]), "<i2").astype(int)
    made = np.frombuffer(streamed_audio(server, {**asked, "stream": True}), "<i2").astype(int)
    assert len(expected) > RATE
    assert made.shape == expected.shape
    assert np.abs(made - expected).max() <= 2


@pytest.mark.parametrize("text", ["😀😀", "。。。", "   "])
def test_nothing_to_say_is_refused(text: str, server: httpx.Client) -> None:
    answer = server.post("/v1/audio/speech", json={"model": "ming", "input": text})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "input"


def test_an_unknown_voice_is_refused_by_name(server: httpx.Client) -> None:
    body = {"model": "ming", "input": SAID, "voice": "ethan"}
    answer = server.post("/v1/audio/speech", json=body)
    assert answer.status_code == 400
    assert "DB30" in answer.json()["error"]["message"]


def hum(loud: float, seconds: float = 2.0) -> bytes:
    """A WAV of somebody who hums."""
    times = np.arange(round(24_000 * seconds)) / 24_000
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(24_000)
        written.writeframes((loud * 32767 * np.sin(1900 * times)).astype("<i2").tobytes())
    return file.getvalue()


def recording(loud: float, seconds: float = 2.0) -> str:
    """The same, as a data: URL."""
    return f"data:audio/wav;base64,{base64.b64encode(hum(loud, seconds)).decode()}"


def test_a_voice_comes_with_its_request(server: httpx.Client) -> None:
    capabilities = server.get("/v1/models").json()["data"][0]["capabilities"]
    assert capabilities["voice_cloning"]
    own = samples(read_aloud(server))
    asked: Asked = {"ref_audio": recording(0.5), "ref_text": "Hello."}
    cloned = samples(read_aloud(server, **asked))
    again = samples(read_aloud(server, **asked))
    assert again.shape == cloned.shape
    assert np.abs(again - cloned).max() <= 2 / 32768
    few = min(len(own), len(cloned))
    assert np.abs(own[:few] - cloned[:few]).max() > 0.01


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"ref_audio": recording(0.0)}, "ref_audio"),
        ({"ref_audio": recording(0.5, seconds=0.5)}, "ref_audio"),
        ({"ref_audio": recording(0.5, seconds=31)}, "ref_audio"),
        ({"ref_audio": "data:audio/wav;base64,UklGRg=="}, "ref_audio"),
        ({"ref_audio": "http://127.0.0.1:9/a.wav"}, "ref_audio"),
        ({"ref_audio": recording(0.5), "ref_text": "a" * 1001}, "ref_text"),
    ],
    ids=["silent", "short", "long", "damaged", "private", "text"],
)
def test_a_recording_without_a_voice_is_refused(
    asked: Asked, param: str, server: httpx.Client
) -> None:
    body = {"model": "ming", "input": SAID, **asked}
    answer = server.post("/v1/audio/speech", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def upload(server: httpx.Client, name: str, data: bytes, **more: str) -> httpx.Response:
    files = {"audio_sample": ("a.wav", data)}
    return server.post("/v1/audio/voices", data={"name": name, **more}, files=files)


def test_an_uploaded_voice_sounds_as_its_recording_does(
    server: httpx.Client, serving: Serving
) -> None:
    """In speech and in chats, and to a server that starts later."""
    added = upload(server, "Anna", hum(0.5), ref_text="Hello.")
    assert added.status_code == 200, added.text
    sent = samples(read_aloud(server, ref_audio=recording(0.5), ref_text="Hello."))
    asked: Asked = {"modalities": ["text", "audio"], "max_tokens": 20, "seed": 3}
    said = [
        chat(server, "say it", **asked, audio={"voice": voice, "format": "wav"})
        for voice in ({"id": "anna"}, "lingguang")
    ]
    own, preset = (
        samples(base64.b64decode(reply["choices"][0]["message"]["audio"]["data"])) for reply in said
    )
    few = min(len(own), len(preset))
    assert np.abs(own[:few] - preset[:few]).max() > 0.01
    with serving() as other:
        for client in (server, other):
            named = samples(read_aloud(client, voice="anna"))
            assert named.shape == sent.shape
            assert np.abs(named - sent).max() <= 2 / 32768
        assert other.delete("/v1/audio/voices/Anna").status_code == 200
    body = {"model": "ming", "input": SAID, "voice": "anna"}
    gone = server.post("/v1/audio/speech", json=body)
    assert (gone.status_code, gone.json()["error"]["param"]) == (400, "voice")


@pytest.mark.parametrize(
    "data", [hum(0.0), hum(0.5, 0.5), hum(0.5, 31), b"RIFF"], ids=["silent", "short", "long", "bad"]
)
def test_a_recording_without_a_voice_is_not_kept(data: bytes, server: httpx.Client) -> None:
    answer = upload(server, "Bert", data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "audio_sample"
    assert server.get("/v1/audio/voices/Bert").status_code == 404


def test_a_long_text_is_spoken_and_a_longer_one_refused(server: httpx.Client) -> None:
    """Text without a mark: in pieces of a length that the Talker speaks."""
    brief = {"talker_stream": {"max_tokens": 1}}
    body = {"model": "ming", "response_format": "pcm", "stage_params": brief}
    spoken = server.post("/v1/audio/speech", json={**body, "input": "word " * 800})
    assert spoken.status_code == 200, spoken.text
    assert len(spoken.content) > 16 * 2 * 24_000 * 0.2  # 16 pieces of 50 words, a patch of each
    refused = server.post("/v1/audio/speech", json={**body, "input": "word " * 2000})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input"
