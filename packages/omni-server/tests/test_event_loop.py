"""Nothing long is done on the event loop, however much a request brings or takes.

Measured as processor time of the loop's thread between two of its turns, which other work of the
machine does not change.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import time

import numpy as np
import pytest

from omni_core.types import AudioDelta, Finished
from omni_server.app import create_app
from omni_server.settings import Settings

CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
LONGEST_TURN_S = 0.03
"""What is done in one piece here takes several times as long where it is done on the loop."""
MINUTES = 4


async def longest_turn_s(app, path, body):
    """The most that the loop's thread computes in one turn while the app answers; and the answer's
    status and bytes."""
    answer = asyncio.ensure_future(asked(app, path, body))
    gc.disable()  # whose turns are as long as the whole test session has made them
    try:
        longest, last = 0.0, time.thread_time()
        while not answer.done():
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
    finally:
        gc.enable()
    return longest, *answer.result()


async def asked(app, path, body):
    """Status and body of one answer, without a socket between."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(b"content-type", b"application/json")], "client": None, "server": None,
    }  # fmt: skip
    pieces = [body[start : start + 2**16] for start in range(0, len(body), 2**16)]
    status, said = 0, []

    async def receive():
        if not pieces:
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # as between two readings of a socket
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        nonlocal status
        status = message.get("status", status)
        said.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, said


def chat(**fields):
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


@pytest.fixture
def app_of(kit):
    """The application around a pipeline that tells these events."""

    def made(*events):
        finished = Finished(finish_reason="stop", usage=kit.USAGE)
        pipeline = kit.FakePipeline(lambda request: [*events, finished])
        return create_app(pipeline, Settings(served_model_name=kit.MODEL))

    return made


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(modalities=["text", "audio"], audio={"format": "wav"})),
        (CHAT, chat(modalities=["text", "audio"], audio={"format": "flac"})),
        (CHAT, chat(modalities=["text", "audio"], stream=True)),
        (SPEECH, json.dumps({"input": "Hi", "response_format": "pcm"}).encode()),
    ],
    ids=["wav", "flac", "stream", "speech"],
)
async def test_minutes_of_audio_at_once(kit, app_of, path, body):
    samples = np.zeros(MINUTES * 60 * kit.RATE, np.float32)
    app = app_of(AudioDelta(samples=samples, sample_rate=kit.RATE))
    longest_s, status, said = await longest_turn_s(app, path, body)
    assert status == 200
    if path == CHAT and b"stream" not in body:
        data = json.loads(b"".join(said))["choices"][0]["message"]["audio"]["data"]
        assert base64.b64decode(data)[:4] in (b"RIFF", b"fLaC")
    assert longest_s < LONGEST_TURN_S


async def test_megabytes_of_media_in_a_body(kit, app_of):
    data = base64.b64encode(bytes(12 * 2**20)).decode()
    audio = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    body = chat(messages=[{"role": "user", "content": [audio]}])
    longest_s, status, _ = await longest_turn_s(app_of(), CHAT, body)
    assert status == 200
    assert longest_s < LONGEST_TURN_S


async def test_twenty_thousand_messages(kit, app_of):
    body = chat(messages=[{"role": "user", "content": "Hi"}] * 20_000)
    longest_s, _, _ = await longest_turn_s(app_of(), CHAT, body)
    assert longest_s < LONGEST_TURN_S
