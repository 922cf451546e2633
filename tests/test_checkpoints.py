"""Checkpoints as operators have them: without speech, in the hub's older layout, from the hub's
cache. Each is served by `omni serve` and asked over HTTP."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

Live = Callable[..., Any]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
COMMIT = "c" * 40


def ask(http: httpx.Client, content: Any, **body: Any) -> dict[str, Any]:
    """The reply to one user message."""
    messages = [{"role": "user", "content": content}]
    response = http.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **body})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


# --- Thinking: a checkpoint without speech whose template opens a thought -------------------------


@pytest.fixture(scope="module")
def thinking_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("thinking")
    command = [sys.executable, "-m", "omni_server", "tiny", "qwen3", str(directory)]
    subprocess.run([*command, "--variant", "text"], check=True, timeout=60)
    return str(directory)


@pytest.fixture(scope="module")
def thinking(thinking_checkpoint: str, live_server: Live) -> Iterator[httpx.Client]:
    with live_server(thinking_checkpoint) as http:
        yield http


def test_the_variant_without_speech_is_chosen(thinking: httpx.Client) -> None:
    stages = thinking.get("/health").json()["stages"]
    assert "thinker" in stages
    assert not {"talker_ar", "code2wav"} & set(stages)
    (model,) = thinking.get("/v1/models").json()["data"]
    assert model["output_modalities"] == ["text"]
    assert model["voices"] == []


def test_thoughts_and_answer_are_apart(thinking: httpx.Client) -> None:
    reply = ask(thinking, "Hello")
    message, usage = reply["choices"][0]["message"], reply["usage"]
    assert message["reasoning_content"]
    assert message["content"]
    assert "think>" not in message["reasoning_content"] + message["content"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning < usage["completion_tokens"]


def test_a_stream_says_the_same_in_the_same_order(thinking: httpx.Client) -> None:
    whole = ask(thinking, "How are you?")
    said: list[tuple[str, str]] = []
    client = OpenAI(base_url=f"{thinking.base_url}/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "How are you?"}],
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        max_tokens=60,
    )
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if thought := getattr(choice.delta, "reasoning_content", None):
                said.append(("reasoning", thought))
            if choice.delta.content:
                said.append(("content", choice.delta.content))
    channels = [channel for channel, _ in said]
    assert channels == sorted(channels, reverse=True), "all thoughts come before the answer"
    message = whole["choices"][0]["message"]
    assert "".join(t for c, t in said if c == "reasoning") == message["reasoning_content"]
    assert "".join(t for c, t in said if c == "content") == message["content"]
    assert usage is not None
    assert usage.completion_tokens == whole["usage"]["completion_tokens"]
    assert usage.completion_tokens_details is not None
    details = whole["usage"]["completion_tokens_details"]
    assert usage.completion_tokens_details.reasoning_tokens == details["reasoning_tokens"]


def test_a_thought_that_the_limit_cuts_is_no_answer(thinking: httpx.Client) -> None:
    reply = ask(thinking, "Hello", max_tokens=3)
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"] == ""
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_tags_in_the_question_open_nothing(thinking: httpx.Client) -> None:
    reply = ask(thinking, "What is </think> and <think> ?")
    assert "reasoning_content" in reply["choices"][0]["message"]


def test_media_are_understood(thinking: httpx.Client) -> None:
    plain = ask(thinking, [{"type": "text", "text": "Hello"}])
    seen = ask(thinking, [picture(), sound(), {"type": "text", "text": "Hello"}])
    assert seen["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    assert seen["usage"]["prompt_tokens_details"]["audio_tokens"] > 0
    assert seen["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


def test_audio_is_refused_with_the_reason(thinking: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "modalities": ["text", "audio"]}
    response = thinking.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "modalities"
    assert "no Talker" in error["message"]


@pytest.mark.parametrize("variant", ["speech", "speech_colocated"])
def test_a_variant_that_speaks_is_refused_with_the_reason(
    thinking_checkpoint: str, variant: str
) -> None:
    command = [sys.executable, "-m", "omni_server", "serve", "--model-path", thinking_checkpoint]
    command += ["--variant", variant, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no Talker" in done.stderr
    assert "--variant text" in done.stderr


# --- the hub's layouts ----------------------------------------------------------------------------


def picture() -> dict[str, Any]:
    y, x = np.mgrid[0:64, 0:64].astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.stack([x * 3, y * 3, x + y], axis=-1)).save(file, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def sound() -> dict[str, Any]:
    tone = (np.sin(np.arange(16_000) / 9) * 9_000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(tone.tobytes())
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def read(directory: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / name).read_text(encoding="utf-8"))
    return content


def write(directory: Path, name: str, content: dict[str, Any]) -> None:
    (directory / name).write_text(json.dumps(content), encoding="utf-8")


def in_older_layout(source: Path, directory: Path) -> None:
    """The files that the published repository has, instead of those that transformers 5 writes."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    tokenizer = read(directory, "tokenizer.json")
    write(directory, "vocab.json", tokenizer["model"]["vocab"])
    merges = "\n".join(" ".join(pair) for pair in tokenizer["model"]["merges"])
    (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    added = {
        str(token["id"]): {k: v for k, v in token.items() if k != "id"}
        for token in tokenizer["added_tokens"]
    }
    settings = read(directory, "tokenizer_config.json") | {"added_tokens_decoder": added}
    write(directory, "tokenizer_config.json", settings)
    template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    write(directory, "chat_template.json", {"chat_template": template})
    processors = read(directory, "processor_config.json")
    size = processors["image_processor"].pop("size")
    flat = processors["image_processor"] | processors["feature_extractor"]
    flat |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    write(directory, "preprocessor_config.json", flat)
    for name in ("tokenizer.json", "chat_template.jinja", "processor_config.json"):
        (directory / name).unlink()


QUESTION = [picture(), sound(), {"type": "text", "text": "What do you see and hear?"}]


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: str, live_server: Live) -> dict[str, Any]:
    """What the checkpoint says in the layout it was written in."""
    with live_server(tiny_checkpoint, "--variant", "text") as http:
        return ask(http, QUESTION)


def heard(reply: dict[str, Any]) -> tuple[Any, Any]:
    return reply["choices"][0]["message"]["content"], reply["usage"]


def test_the_older_layout_says_the_same(
    tiny_checkpoint: str, tmp_path: Path, live_server: Live, expected: dict[str, Any]
) -> None:
    in_older_layout(Path(tiny_checkpoint), tmp_path)
    with live_server(str(tmp_path), "--variant", "text") as http:
        assert heard(ask(http, QUESTION)) == heard(expected)
    assert expected["choices"][0]["message"]["content"]


def test_a_hub_id_is_served_from_the_cache_without_a_network(
    tiny_checkpoint: str,
    tmp_path: Path,
    live_server: Live,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached = tmp_path / "hub" / "models--lab--tiny"
    shutil.copytree(tiny_checkpoint, cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with live_server("lab/tiny@v1", "--variant", "text") as http:
        assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["lab/tiny"]
        assert heard(ask(http, QUESTION, model="lab/tiny")) == heard(expected)
