"""LiteLLM's proxy in front of the server, and openai-python in front of it.

It has an environment of its own, whose `litellm` command OMNI_LITELLM names. It drops what it does
not know from speech requests, answers 500 to those that the server refused with 400, and cannot
stream transcriptions: none of that can be mended here.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from asked import (
    BRIEF,
    KEY,
    MODEL,
    READING,
    REQUEST_DEADLINE_S,
    TEXT_AND_AUDIO,
    VOICE,
    recorded,
    tone,
)
from heard import BARE, CODEC_FRAME_S, FORMATS, PCM_TOLERANCE, hear
from relay import Relay, relay_before

COMMAND = "OMNI_LITELLM"
START_DEADLINE_S = 240.0
GATEWAY_KEY = "sk-gateway"
NAME = "omni-behind-litellm"
RELAYED = "relayed"
"""The same, but what the server gives is remembered."""
WITHOUT_KEY, WITHOUT_MODEL = "wrong-key", "wrong-model"
SECONDS = 1.0
READ_PLAINLY: dict[str, Any] = {**READING, "extra_body": None}


def model_entry(name: str, served: str, model: str, key: str) -> dict[str, Any]:
    """One model of LiteLLM's configuration."""
    where = {"model": f"openai/{model}", "api_base": f"{served}/v1", "api_key": key}
    return {"model_name": name, "litellm_params": where}


@pytest.fixture(scope="module")
def relay(served: str) -> Iterator[Relay]:
    with relay_before(served, REQUEST_DEADLINE_S) as relay:
        yield relay


@pytest.fixture(scope="module")
def proxy(served: str, relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of the proxy."""
    command = os.environ.get(COMMAND)
    if command is None:
        pytest.skip(f"no LiteLLM: `nox -s clients_apart` names its command in {COMMAND}")
    root = tmp_path_factory.mktemp("litellm")
    config, log = root / "config.yaml", root / "log"
    models = [
        model_entry(NAME, served, MODEL, KEY),
        model_entry(RELAYED, relay.url, MODEL, KEY),
        model_entry(WITHOUT_KEY, served, MODEL, "sk-wrong"),
        model_entry(WITHOUT_MODEL, served, "gpt-4o", KEY),
    ]
    settings = {"telemetry": False, "num_retries": 0}
    config.write_text(  # YAML, too
        json.dumps(
            {
                "model_list": models,
                "general_settings": {"master_key": GATEWAY_KEY},
                "litellm_settings": settings,
            }
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    run = [command, "--config", str(config), "--host", "127.0.0.1", "--port", port]
    alone = {"PATH": os.environ["PATH"], "HOME": str(root), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (
        log.open("w") as out,
        subprocess.Popen(run, env=alone, cwd=root, stdout=out, stderr=out) as process,
    ):
        try:
            wait_until_alive(f"http://127.0.0.1:{port}", process, log)
            with OpenAI(
                base_url=f"http://127.0.0.1:{port}/v1",
                api_key=GATEWAY_KEY,
                max_retries=0,
                timeout=REQUEST_DEADLINE_S,
            ) as sdk:
                yield sdk
        finally:
            process.terminate()
            process.wait(60)


def wait_until_alive(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Ask until the proxy answers; should it not, its log is the message."""
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health/liveliness").status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.2)  # another process is the one that works
    pytest.fail(f"LiteLLM is not ready:\n{log.read_text()}")


def through(asked: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same, asked of the proxy."""
    return {**asked, "model": NAME, **changes}


def test_models(proxy: OpenAI) -> None:
    assert NAME in {model.id for model in proxy.models.list()}


def test_a_chat(proxy: OpenAI, client: OpenAI) -> None:
    direct = client.chat.completions.create(**BRIEF)
    reply = proxy.chat.completions.create(**through(BRIEF))
    assert reply.choices[0].message.content == direct.choices[0].message.content != ""
    assert reply.choices[0].finish_reason == direct.choices[0].finish_reason
    assert reply.usage is not None
    assert direct.usage is not None
    assert reply.usage.total_tokens == direct.usage.total_tokens
    stream = proxy.chat.completions.create(
        **through(BRIEF), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == direct.choices[0].message.content
    [usage] = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.total_tokens == direct.usage.total_tokens


@pytest.mark.parametrize("name", [*FORMATS, "pcm16"])
def test_a_spoken_reply(proxy: OpenAI, client: OpenAI, name: str) -> None:
    spoken: dict[str, Any] = {
        "modalities": TEXT_AND_AUDIO,
        "audio": {"voice": VOICE, "format": name},
    }
    direct = client.chat.completions.create(**BRIEF, **spoken).choices[0].message.audio
    reply = proxy.chat.completions.create(**through(BRIEF), **spoken).choices[0].message.audio
    assert direct is not None
    assert reply is not None
    assert reply.transcript == direct.transcript
    same_sound(base64.b64decode(reply.data), base64.b64decode(direct.data), name)


def test_a_spoken_reply_that_streams(proxy: OpenAI, client: OpenAI) -> None:
    spoken: dict[str, Any] = {
        "modalities": TEXT_AND_AUDIO,
        "audio": {"voice": VOICE, "format": "pcm16"},
    }
    direct = client.chat.completions.create(**BRIEF, **spoken).choices[0].message.audio
    stream = proxy.chat.completions.create(**through(BRIEF), **spoken, stream=True)
    deltas = [chunk.choices[0].delta.model_dump() for chunk in stream if chunk.choices]
    audio = [delta["audio"] for delta in deltas if delta.get("audio")]
    assert direct is not None
    assert "".join(piece.get("transcript") or "" for piece in audio) == direct.transcript
    data = base64.b64decode("".join(piece.get("data") or "" for piece in audio))
    same_sound(data, base64.b64decode(direct.data), "pcm16")


@pytest.mark.parametrize("name", [*FORMATS, "pcm"])
def test_speech(proxy: OpenAI, relay: Relay, name: str) -> None:
    """To the byte what the server gave: no seed comes through that made two readings alike."""
    asked = through(READ_PLAINLY, model=RELAYED)
    speech = proxy.audio.speech.create(**asked, response_format=name)
    assert speech.content == relay.speech(name)
    heard = hear(speech.content, name)
    assert len(heard.samples) > CODEC_FRAME_S * heard.rate
    if name in FORMATS:
        assert (heard.container, heard.rate) == (FORMATS[name].container, FORMATS[name].rate)


def same_sound(data: bytes, expected: bytes, name: str) -> None:
    """Nothing was lost or added on the way."""
    one, other = hear(data, name).samples, hear(expected, name).samples
    assert len(one) == len(other) > 0
    if name in BARE or FORMATS[name].lossless:
        assert np.abs(one - other).max() <= PCM_TOLERANCE


def test_a_transcription(proxy: OpenAI, client: OpenAI) -> None:
    """LiteLLM asks for verbose_json where its client names no format."""
    known: dict[str, Any] = {"file": ("ünï.wav", recorded(tone(SECONDS), "wav")), "language": "en"}
    direct = client.audio.transcriptions.create(**known, model=MODEL)
    reply = proxy.audio.transcriptions.create(**known, model=NAME, response_format="json")
    assert reply.text == direct.text != ""
    unnamed = proxy.audio.transcriptions.create(**known, model=NAME).model_dump()
    assert (unnamed["text"], unnamed["duration"]) == (direct.text, SECONDS)
    verbose = proxy.audio.transcriptions.create(
        **known,
        model=NAME,
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert verbose.segments is not None
    assert [segment.end for segment in verbose.segments] == [SECONDS]
    subtitles = proxy.audio.transcriptions.create(**known, model=NAME, response_format="srt")
    assert "00:00:00,000 --> 00:00:01,000" in str(subtitles)


def test_refusals(proxy: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        proxy.chat.completions.create(**through(BRIEF, temperature=-1))
    with pytest.raises(openai.BadRequestError, match="cannot be decoded"):
        proxy.audio.transcriptions.create(file=b"no sound", model=NAME)
    with pytest.raises(openai.AuthenticationError, match="Incorrect key"):
        proxy.chat.completions.create(**through(BRIEF, model=WITHOUT_KEY))
    with pytest.raises(openai.NotFoundError, match="gpt-4o"):
        proxy.chat.completions.create(**through(BRIEF, model=WITHOUT_MODEL))
    with pytest.raises(openai.APIStatusError):
        proxy.audio.speech.create(**through(READ_PLAINLY, voice="alloy"))
    reconnecting = proxy.with_options(max_retries=1)
    assert reconnecting.chat.completions.create(**through(BRIEF)).choices
