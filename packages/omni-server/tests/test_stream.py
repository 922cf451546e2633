"""Server-sent events: order, timing, usage, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time

import httpx
import numpy as np
import pytest

from omni_core.errors import StageDiedError
from omni_core.media.encode import pcm16
from omni_core.types import Finished, TextDelta, Usage
from omni_server.audio import PcmPieces
from omni_server.metrics import Metrics, RequestTimer

WITHIN_S = 1.0


async def read_events(live, **body):
    """All `data:` payloads of a streamed chat, decoded but for [DONE]."""
    response = await live.chat(stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return payloads_of(response.text)


async def read_broken_events(live, kit):
    """The same of a stream whose connection must break instead of ending."""
    text = ""

    async def read():
        nonlocal text
        body = {**kit.hello(), "stream": True}
        async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for piece in response.aiter_text():
                text += piece

    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message"):
        await read()
    return payloads_of(text)


def payloads_of(text):
    frames = text.split("\n\n")
    assert frames.pop() == ""
    payloads = [frame.removeprefix("data: ") for frame in frames]
    return [p if p == "[DONE]" else json.loads(p) for p in payloads]


async def test_text_stream_order(live):
    *chunks, done = await read_events(live)
    assert done == "[DONE]"
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [d["content"] for d in deltas[1:-1]] == ["Hé", "llo", " there"]
    assert deltas[-1] == {}
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize(
    "modalities", [None, ["text"], ["audio"], ["text", "audio"], ["audio", "text"]], ids=str
)
async def test_every_mix_of_modalities_begins_with_the_role_and_ends_once(local, modalities):
    *chunks, done = await read_events(local, modalities=modalities)
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [i for i, c in enumerate(choices) if c["delta"].get("role")] == [0]
    assert choices[0]["delta"]["role"] == "assistant"
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert any("audio" in c["delta"] for c in choices) == ("audio" in (modalities or []))


@pytest.mark.parametrize("options", [{"include_usage": False}, {}, None])
async def test_without_the_option_no_chunk_has_usage(local, options):
    *chunks, _ = await read_events(local, stream_options=options)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_usage_comes_last_and_equals_the_unstreamed(live):
    for modalities in (["text"], ["text", "audio"]):
        body = {"modalities": modalities, "stream_options": {"include_usage": True}}
        *chunks, last, _ = await read_events(live, **body)
        assert all(c["usage"] is None for c in chunks)
        assert last["choices"] == []
        whole = (await live.chat(modalities=modalities)).json()
        assert last["usage"] == whole["usage"]


async def test_audio_stream_has_one_id_and_adds_up_to_the_unstreamed(live, kit):
    *chunks, _ = await read_events(live, modalities=["text", "audio"])
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    audio = [d["audio"] for d in deltas if "audio" in d]
    assert all("content" not in d for d in deltas[1:])
    assert [i for i, a in enumerate(audio) if "id" in a] == [0]
    assert "".join(a.get("transcript", "") for a in audio) == "Héllo there"
    assert set(audio[-1]) == {"expires_at", "finish_reason"}
    assert audio[-1]["finish_reason"] == "stop"
    assert not any("expires_at" in a for a in audio[:-1])
    pcm = b"".join(base64.b64decode(a["data"]) for a in audio if "data" in a)
    assert [a["sample_rate"] for a in audio if "sample_rate" in a] == [kit.RATE]
    body = (await live.chat(modalities=["audio"], audio={"format": "pcm16"})).json()
    assert pcm == base64.b64decode(body["choices"][0]["message"]["audio"]["data"])
    assert len(pcm) == 2 * (480 + 31 + 960)


def test_pcm_pieces_decode_alone_and_joined():
    samples = np.linspace(-1, 1, 1000, dtype=np.float32)
    pieces = PcmPieces()
    sizes = [1, 1, 1, 5, 0, 480, 7, 505]
    cuts = np.cumsum([0, *sizes])
    texts = [pieces.push(samples[a:b]) for a, b in itertools.pairwise(cuts)] + [pieces.flush()]
    assert pieces.flush() == ""
    assert texts[:3] == ["", "", base64.b64encode(pcm16(samples[:3])).decode()]
    assert base64.b64decode("".join(texts), validate=True) == pcm16(samples)
    alone = [base64.b64decode(text, validate=True) for text in texts]
    assert b"".join(alone) == pcm16(samples)
    assert all(len(piece) % 2 == 0 for piece in alone)


async def test_timeline_rides_on_the_finish_chunk(live):
    *chunks, _ = await read_events(live, include_timeline=True)
    assert [i for i, c in enumerate(chunks) if "timeline" in c] == [len(chunks) - 1]
    assert [span["stage"] for span in chunks[-1]["timeline"]] == ["thinker", "voice"]


async def test_each_delta_is_sent_the_moment_it_exists(live, kit):
    gates = [asyncio.Event() for _ in range(3)]
    whole = kit.default_script

    def gated(request):
        first, second, third, finished = whole(request)
        return [first, gates[0], second, gates[1], third, gates[2], finished]

    live.pipeline.script = gated
    body = {**kit.hello(), "stream": True}
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        for gate, text in zip(gates, ["Hé", "llo", " there"], strict=True):
            async for line in lines:
                if f'"content":"{text}"' in line:
                    break
            assert live.pipeline.running == 1
            gate.set()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_error_after_the_start_is_told_and_breaks_the_transfer(live, kit, caplog):
    live.pipeline.script = lambda request: [TextDelta(text="a"), StageDiedError("stage gone")]
    *chunks, last = await read_broken_events(live, kit)
    assert chunks[-1]["choices"][0]["delta"] == {"content": "a"}
    assert last["error"]["message"] == "stage gone"
    assert last["error"]["type"] == "server_error"
    live.pipeline.script = lambda request: [TextDelta(text="a"), ZeroDivisionError("secret")]
    *_, last = await read_broken_events(live, kit)
    assert last["error"]["code"] == "internal_error"
    assert "secret" not in last["error"]["message"]
    assert "uvicorn.error" not in {record.name for record in caplog.records}


@pytest.mark.parametrize("after_first_delta", [True, False])
async def test_client_leaving_a_stream_closes_the_generator(live, kit, after_first_delta):
    never = asyncio.Event()
    before = [TextDelta(text="a")] if after_first_delta else []
    live.pipeline.script = lambda request: [*before, never]
    body = {**kit.hello(), "stream": True}
    if after_first_delta:
        async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if '"content":"a"' in line:
                    break
    else:
        await leave_before_the_answer(live, body)
    await asyncio.wait_for(live.pipeline.closed.wait(), WITHIN_S)
    assert live.pipeline.running == 0
    assert await ended_with_499(live)
    assert await aborts_timed(live) == 1


async def test_client_leaving_an_unstreamed_request_closes_the_generator(live, kit):
    live.pipeline.script = lambda request: [TextDelta(text="a"), asyncio.Event()]
    await leave_before_the_answer(live, kit.hello())
    await asyncio.wait_for(live.pipeline.closed.wait(), WITHIN_S)
    assert live.pipeline.running == 0
    assert await ended_with_499(live)
    assert await aborts_timed(live) == 1
    live.pipeline.script = kit.default_script
    assert (await live.chat()).status_code == 200


async def test_client_leaving_while_it_sends_is_no_error_of_ours(live):
    host, _, port = live.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    await writer.drain()
    async with asyncio.timeout(WITHIN_S):
        while "omni_requests_in_flight 1.0" not in (await live.http.get("/metrics")).text:
            await asyncio.sleep(0)
    writer.close()
    assert await ended_with_499(live)
    assert await aborts_timed(live) == 0


@pytest.mark.parametrize(
    ("left_by", "aborts"),
    [(None, 0), (StageDiedError("gone"), 0), (asyncio.CancelledError(), 1), (GeneratorExit(), 1)],
)
def test_only_a_client_that_leaves_in_the_middle_aborts_something(left_by, aborts):
    metrics = Metrics()
    timer = RequestTimer(metrics)
    with contextlib.suppress(BaseException), timer.generating():
        timer.saw(TextDelta(text="a"))
        if left_by is not None:
            raise left_by
    timer.end(499, time.perf_counter())
    for name in ("client_gone", "sent"):
        count = f"omni_abort_{name}_seconds_count"
        assert metrics.registry.get_sample_value(count) == aborts


@pytest.mark.parametrize(("finished", "aborts"), [(1, 1), (2, 0)])
def test_a_request_is_over_once_all_its_parts_have_finished(finished, aborts):
    metrics = Metrics()
    timer = RequestTimer(metrics)
    with contextlib.suppress(BaseException), timer.generating(2):
        timer.saw(TextDelta(text="a"))
        for _ in range(finished):
            timer.saw(Finished(finish_reason="stop", usage=Usage()))
        raise GeneratorExit
    timer.end(499, time.perf_counter())
    value = metrics.registry.get_sample_value
    assert value("omni_abort_client_gone_seconds_count") == aborts
    assert (value("omni_time_to_text_done_seconds_count", {"output": "text"}) or 0) == 1 - aborts


async def leave_before_the_answer(live, body):
    """Send a request, wait until the pipeline works on it, and hang up."""
    host, _, port = live.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    async with asyncio.timeout(WITHIN_S):
        while not live.pipeline.running:
            await asyncio.sleep(0)
    writer.close()
    await writer.wait_closed()


async def aborts_timed(live):
    """How many aborts of clients that left the metrics have times of."""
    lines = (await live.http.get("/metrics")).text.splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith("omni_abort_"))
    gone, sent = (counts[f"omni_abort_{name}_seconds_count"] for name in ("client_gone", "sent"))
    assert gone == sent
    return float(gone)


async def ended_with_499(live):
    """Whether the metrics say that the client left, once the server has noticed."""
    async with asyncio.timeout(WITHIN_S):
        while 'omni_requests_total{status="499"} 1.0' not in (await live.http.get("/metrics")).text:
            await asyncio.sleep(0)
    return True
