"""What is refused, with which status, naming which field; and that the next request works."""

from __future__ import annotations

import base64

import pytest

from omni_core.errors import (
    ContextLengthError,
    MediaError,
    NotReadyError,
    StageDiedError,
    StageError,
)
from omni_core.media.limits import MediaLimits
from omni_server.schema.chat import ChatBody
from omni_server.schema.decode import decode_body
from omni_server.settings import MIB, Settings


def user(*parts):
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(url):
    return user({"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}})


def audio(data, fmt="wav"):
    return user({"type": "input_audio", "input_audio": {"data": data, "format": fmt}})


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "content": None}
CALLS = {**ASSISTANT, "tool_calls": [CALL]}
HI = {"role": "user", "content": "Hi"}

CASES = [
    # body, param, words the message must have
    ({"messages": []}, "messages", "empty"),
    ({"messages": None}, "messages", "array"),
    ({"messages": "Hi"}, "messages", "array"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages", "user"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages", "no content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages", "no content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "null"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role", "Missing"),
    ({"messages": [HI, ASSISTANT, HI]}, "messages[1].content", "null"),
    ({"messages": [HI, CALLS]}, "messages[1].tool_calls", "supported"),
    ({"messages": [HI, {"role": "tool", "content": "x"}]}, "messages[1].role", "tool"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role", "developer"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "integer"),
    (user({"type": "smell"}), "messages[0].content[0].type", "input_audio"),
    (user({"text": "x"}), "messages[0].content[0].type", "Missing"),
    (user({"type": "text", "text": None}), "messages[0].content[0].text", "string"),
    (
        {"messages": [HI, {"role": "assistant", "content": image("http://h/i")["messages"][0]["content"]}]},
        "messages[1].content[1]", "user",
    ),
    (image("data:image/png;base64,@@@"), "messages[0].content[1].image_url", "base64"),
    (image("data:image/png;base64"), "messages[0].content[1].image_url", "comma"),
    (image("data:image/png;base64,"), "messages[0].content[1].image_url", "empty"),
    (image("file:///etc/passwd"), "messages[0].content[1].image_url", "http"),
    (image("/etc/passwd"), "messages[0].content[1].image_url", "http"),
    (image("ftp://h/x"), "messages[0].content[1].image_url", "http"),
    (image("http://"), "messages[0].content[1].image_url", "host"),
    (image("http://[::1"), "messages[0].content[1].image_url", "URL"),
    (image(7), "messages[0].content[1].image_url.url", "integer"),
    (audio("!!"), "messages[0].content[0].input_audio", "base64"),
    (audio(""), "messages[0].content[0].input_audio", "empty"),
    (audio("AAAA", "midi"), "messages[0].content[0].input_audio.format", "mp3"),
    ({"images": ["file:///x"]}, "images[0]", "http"),
    ({"audios": ["http://h/a", "data:,"]}, "audios[1]", "empty"),
    ({"videos": [3]}, "videos[0]", "string"),
    ({"modalities": []}, "modalities", "empty"),
    ({"modalities": ["text", "smell"]}, "modalities", "smell"),
    ({"modalities": "text"}, "modalities", "array"),
    ({"modalities": ["audio"], "audio": {"voice": "nobody"}}, "audio.voice", "Ethan, Chelsie"),
    ({"modalities": ["audio"], "audio": {"format": "midi"}}, "audio.format", "pcm16"),
    (
        {"modalities": ["audio"], "stream": True, "audio": {"format": "wav"}},
        "audio.format", "pcm16",
    ),
    ({"max_tokens": 0}, "max_tokens", "1"),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "1"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "contradict"),
    ({"max_tokens": "5"}, "max_tokens", "integer"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "limit"),
    ({"temperature": -1}, "temperature", "0"),
    ({"temperature": 3}, "temperature", "2"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": True}, "temperature", "boolean"),
    ({"top_p": 0}, "top_p", "0"),
    ({"top_p": 1.5}, "top_p", "1"),
    ({"top_k": -2}, "top_k", "-1"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"seed": 2**64}, "seed", "9223372036854775807"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "4"),
    ({"stop": [""]}, "stop", "empty"),
    ({"presence_penalty": 3}, "presence_penalty", "2"),
    ({"logit_bias": {"5": 101}}, "logit_bias[...]", "100"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "integer"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"video_fps": 0}, "video_fps", "0"),
    ({"min_pixels": 10, "max_pixels": 9}, "min_pixels", "max_pixels"),
    ({"stage_params": {"thinkr": {}}}, "stage_params.thinkr", "'thinker'"),
    (
        {"stage_params": {"voice": {"temprature": 1}}},
        "stage_params.voice.temprature", "'temperature'",
    ),
    ({"stage_params": {"voice": {"max_tokens": 0}}}, "stage_params.voice.max_tokens", "1"),
    ({"stage_params": {"voice": 5}}, "stage_params[...]", "object"),
    ({"top_k": 2**70}, "top_k", "integer"),
    ({"logit_bias": {str(2**70): 1}}, "logit_bias", "integer"),
    ({"max_completion_tokens": 2049}, "max_completion_tokens", "2048"),
    ({"n": 0}, "n", "1"),
    ({"n": 9}, "n", "8"),
    ({"n": 2, "include_timeline": True}, "include_timeline", "timeline"),
    ({"tools": [{"type": "function"}]}, "tools", "supported"),
    ({"tools": "all"}, "tools", "array"),
    ({"tool_choice": "required"}, "tool_choice", "supported"),
    ({"functions": [{"name": "f"}]}, "functions", "'tools'"),
    ({"function_call": {"name": "f"}}, "function_call", "'tool_choice'"),
    ({"messages": [HI, {**CALLS, "function_call": {}}]}, "messages[1].function_call", "tool_calls"),
    ({"messages": [HI, {"role": "function", "content": "x"}]}, "messages[1].role", "tool"),
    ({"messages": [{**HI, "name": "x" * 65}]}, "messages[0].name", "64"),
    ({"store": True}, "store", "stored"),
    ({"service_tier": "flex"}, "service_tier", "default"),
    ({"verbosity": "high"}, "verbosity", "supported"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "supported"),
    ({"web_search_options": {}}, "web_search_options", "supported"),
    ({"moderation": {"model": "omni-moderation-latest"}}, "moderation", "supported"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}},
     "stream_options.include_obfuscation", "supported"),
    ({"metadata": {"a": 1}}, "metadata[...]", "string"),
    ({"metadata": {"a": "x" * 513}}, "metadata", "512"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16"),
    ({"logprobs": True}, "logprobs", "supported"),
    ({"response_format": {"type": "json_object"}}, "response_format", "supported"),
    (
        {"mm_processor_kwargs": {"use_audio_in_video": True}},
        "mm_processor_kwargs", "supported",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "words"), CASES, ids=lambda v: str(v)[:60])
async def test_refused_with_400_naming_the_field(local, body, param, words):
    error = await local.refused(400, **body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert not local.pipeline.requests
    assert (await local.chat()).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff\xfe", b"[" * 100_000])
async def test_body_that_is_not_json(local, body):
    response = await local.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"temperature": NaN, "messages": []}', "temperature"),
        (b'{"stage_params": {"voice": {"top_p": -Infinity}}}', "stage_params.voice.top_p"),
        (b'{"stop_token_ids": [1, Infinity]}', "stop_token_ids[1]"),
        (b'{"temperature": NaN', None),
        (b'{"model": "a: NaN,"', None),
    ],
)
async def test_numbers_that_are_none_are_named(local, body, param):
    response = await local.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_the_field_at_fault_is_not_looked_for_in_a_large_body(local):
    """Building it to look through it would hold up every other request."""
    large = b'{"messages": [], "user": "%s", "seed": NaN}' % (b"x" * MIB)
    error = (await local.http.post("/v1/chat/completions", content=large)).json()["error"]
    assert (error["param"], error["code"]) == (None, "invalid_json")


async def test_nothing_is_built_of_what_is_only_refused(local):
    nested = b'[{"name": "f", "x": [1, 2, {}]}, "%s"]' % (b"x" * 100)
    body = decode_body(b'{"messages": [], "functions": %s}' % nested, ChatBody)
    assert bytes(body.functions) == nested
    content = b'{"messages": [], "functions": %s}' % nested
    response = await local.http.post("/v1/chat/completions", content=content)
    assert response.json()["error"]["param"] == "functions"


async def test_body_that_is_not_an_object(local):
    response = await local.http.post("/v1/chat/completions", content=b"[]")
    assert response.status_code == 400
    assert "object" in response.json()["error"]["message"]


async def test_unknown_model(local):
    error = await local.refused(404, model="gpt-4o")
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"


async def test_audio_from_a_pipeline_without_it(local):
    local.pipeline.modalities = ("text",)
    error = await local.refused(400, modalities=["text", "audio"])
    assert error["param"] == "modalities"
    assert "not served" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (MediaError("cut", param="messages[0]"), 400, "invalid_request_error", "invalid_media"),
        (ContextLengthError("long"), 400, "invalid_request_error", "context_length_exceeded"),
        (StageError("oops"), 500, "server_error", "stage_error"),
        (StageDiedError("gone"), 503, "server_error", "stage_died"),
        (NotReadyError("wait"), 503, "server_error", "not_ready"),
    ],
)  # fmt: skip
async def test_pipeline_errors_keep_their_status(local, stream, error, status, kind, code):
    local.pipeline.script = lambda request: [error]
    response = await local.chat(stream=stream)
    assert response.status_code == status
    body = response.json()["error"]
    wanted = {"message": error.message, "type": kind, "param": error.param, "code": code}
    assert body == wanted
    assert ("retry-after" in response.headers) == error.retryable


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_is_a_500_error_object(local, stream):
    local.pipeline.script = lambda request: [ZeroDivisionError("secret")]
    response = await local.chat(stream=stream)
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]
    local.pipeline.script = lambda request: []
    response = await local.chat()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "stage_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405),
     ("GET", "/v1/models/none/such", 404)],
)  # fmt: skip
async def test_every_route_answers_in_error_objects(local, method, path, status):
    response = await local.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_body_over_the_limit_announced_and_chunked(live):
    async def chunks():
        for _ in range(40):
            yield b" " * 65536

    for content in (b" " * (1024 * 1024 + 1), chunks()):
        response = await live.http.post("/v1/chat/completions", content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "payload_too_large"
    assert (await live.chat()).status_code == 200


async def test_inline_media_over_its_own_limit(pipeline, kit):
    limits = MediaLimits(max_bytes=100)
    settings = Settings(served_model_name=kit.MODEL, media=limits)
    async with kit.serving(pipeline, settings) as local:
        data = base64.b64encode(b"x" * 101).decode()
        error = await local.refused(413, **audio(data))
        assert error["param"] == "messages[0].content[0].input_audio"
