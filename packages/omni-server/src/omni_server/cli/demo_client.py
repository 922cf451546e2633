"""One streamed chat over HTTP with nothing but the standard library.

Knows server-sent events and OpenAI's chunks. Times what a listener would notice.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from omni_core.errors import OmniError

TIMEOUT_S = 300.0


@dataclass(kw_only=True)
class Heard:
    """What came back, and when, in seconds since the request was sent."""

    transcript: str = ""
    pcm: bytes = b""
    sample_rate: int = 0
    first_text_s: float | None = None
    first_audio_s: float | None = None
    total_s: float = 0.0
    timeline: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)


def ask(url: str, body: dict[str, Any], on_text: Callable[[str], None]) -> Heard:
    """Send a streamed chat request and listen to its end; text is passed on as it comes."""
    heard = Heard()
    start_s = time.perf_counter()
    for chunk in _chunks(url, body):
        _hear(chunk, heard, time.perf_counter() - start_s, on_text)
    heard.total_s = time.perf_counter() - start_s
    return heard


def get_json(url: str, path: str) -> Any:
    """The JSON answer to a GET."""
    connection = _connect(url)
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


def _chunks(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    connection = _connect(url)
    headers = {"Content-Type": "application/json"}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), headers
    )
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise OmniError(f"the server answered {response.status}: {response.read().decode()}")
    for line in response:
        payload = line.decode().removeprefix("data: ").strip()
        if payload == "[DONE]":
            return
        if payload:
            chunk = json.loads(payload)
            if "error" in chunk:
                raise OmniError(f"the reply broke off: {chunk['error']['message']}")
            yield chunk
    raise OmniError("the reply broke off without [DONE]")


def _hear(
    chunk: dict[str, Any], heard: Heard, elapsed_s: float, on_text: Callable[[str], None]
) -> None:
    heard.timeline = chunk.get("timeline", heard.timeline)
    heard.usage = chunk.get("usage") or heard.usage
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    audio = delta.get("audio") or {}
    if text := audio.get("transcript"):
        heard.transcript += text
        heard.first_text_s = elapsed_s if heard.first_text_s is None else heard.first_text_s
        on_text(text)
    if data := audio.get("data"):
        heard.pcm += base64.b64decode(data)
        heard.sample_rate = audio.get("sample_rate", heard.sample_rate)
        heard.first_audio_s = elapsed_s if heard.first_audio_s is None else heard.first_audio_s


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
