"""Requests through a router that listens, to workers that do as the test says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from omni_router.worker import WorkerState

EVENTS = {"Content-Type": "text/event-stream"}


def raw_head(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def exchange(url: str, request: bytes, wait_s: float = 5.0) -> bytes:
    """All that comes on a connection until it is closed."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(-1), wait_s)
    writer.close()
    return answer


def post(body: bytes, *fields: str, path: str = "/v1/chat/completions") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(["\r\n".join(head), "", ""]).encode() + body


# ---- what passes


async def test_path_query_and_body_arrive_byte_for_byte(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend)
    body = b'{"model" :  "m",  "x": "\\u00e9", "n": 1e400}'
    target = "/v1/some%2Fthing/..x%2f?a=%20b&&c=%C3%A9+d/../"
    await exchange(one.url, post(body, "Connection: close", path=target))
    [seen] = backend.seen
    assert (seen.target, seen.body) == (target, body)


async def test_headers_pass_and_those_of_the_connection_do_not(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend)
    fields = (
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate: a=b",
        "baggage: c=d",
        "Authorization: Bearer secret",
        "X-Request-Id: mine",
        "X-Forwarded-For: 10.0.0.1",
        "Connection: close, X-Hop",
        "X-Hop: yes",
        "TE: trailers",
    )
    await exchange(one.url, post(b"{}", *fields))
    headers = backend.seen[0].headers
    assert headers["traceparent"].startswith("00-4bf9")
    assert (headers["tracestate"], headers["baggage"]) == ("a=b", "c=d")
    assert headers["Authorization"] == "Bearer secret"
    assert headers["X-Request-Id"] == "mine"
    assert headers["X-Forwarded-For"] == "10.0.0.1, 127.0.0.1"
    assert headers["X-Forwarded-Proto"] == "http"
    assert headers["X-Forwarded-Host"] == "x"
    for name in ("X-Hop", "TE", "Accept-Encoding", "User-Agent", "Accept"):
        assert name not in headers, name


async def test_an_answer_keeps_its_status_headers_and_bytes(scripted: Any, routed: Any) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        headers = {"X-Own": "1", "Content-Encoding": "gzip", "Content-Type": "audio/wav"}
        return web.Response(status=418, reason="Tea", body=b"not gzip", headers=headers)

    backend = await scripted(answer)
    one = await routed(backend)
    head, body = raw_head(await exchange(one.url, post(b"{}", "Connection: close")))
    assert head.startswith(b"HTTP/1.1 418 Tea\r\n")
    assert b"X-Own: 1" in head
    assert b"Content-Encoding: gzip" in head
    assert f"X-Omni-Worker: {backend.name}".encode() in head
    assert body == b"not gzip"


async def test_a_redirect_is_the_clients_to_follow(scripted: Any, routed: Any) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    one = await routed(await scripted(answer))
    async with one.client.get(f"{one.url}/v1/x", allow_redirects=False) as reply:
        assert (reply.status, reply.headers["Location"]) == (307, "/elsewhere")


async def test_head_has_the_length_and_no_body(scripted: Any, routed: Any) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x" * 500)

    one = await routed(await scripted(answer))
    head = b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    told, body = raw_head(await exchange(one.url, head))
    assert b"Content-Length: 500" in told
    assert body == b""


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(scripted: Any, routed: Any, status: int) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status)

    one = await routed(await scripted(answer))
    told, body = raw_head(
        await exchange(one.url, b"GET /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    )
    assert told.startswith(f"HTTP/1.1 {status}".encode())
    assert b"chunked" not in told
    assert body == b""


async def test_one_connection_carries_many_requests(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, probe_interval_s=60.0)
    for number in range(20):
        status, told = await one.chat({"n": number})
        assert (status, json.loads(told["body"])["n"]) == (200, number)
    assert len(backend.http.connections) <= 2


async def test_the_id_that_the_worker_draws_is_the_requests(scripted: Any, routed: Any) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        assert "X-Request-Id" not in request.headers
        return web.json_response({}, headers={"X-Request-Id": "chatcmpl-1"})

    one = await routed(await scripted(answer))
    async with one.client.post(f"{one.url}/v1/x") as reply:
        assert reply.headers["X-Request-Id"] == "chatcmpl-1"
    assert one.records[0].request_id == "chatcmpl-1"


async def test_an_id_is_drawn_here_where_nobody_has_one(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted())
    for path in ("/v1/x", "/live"):
        async with one.client.get(one.url + path) as reply:
            assert reply.headers["X-Request-Id"].startswith("req_")


# ---- streams


async def test_events_arrive_as_they_are_written(scripted: Any, routed: Any) -> None:
    go = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go.wait()
        await response.write(b"data: 2\n\n")
        return response

    one = await routed(await scripted(stream))
    async with one.client.post(f"{one.url}/v1/chat/completions", data=b"{}") as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        first = await asyncio.wait_for(reply.content.readany(), 1)
        assert first == b"data: 1\n\n", "it came while the second was not written"
        go.set()
        assert await reply.content.read() == b"data: 2\n\n"


async def test_a_large_body_is_forgotten_once_its_answer_streams(
    scripted: Any, routed: Any
) -> None:
    import gc

    go = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        await request.content.read()
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go.wait()
        return response

    one = await routed(await scripted(stream))
    async with one.client.post(f"{one.url}/v1/x", json={"x": "y" * 3_000_000}) as reply:
        await reply.content.readany()
        held = [
            o for o in gc.get_objects() if getattr(type(o), "__name__", "") == "Whole" and o.data
        ]
        assert held == []
        go.set()
        await reply.content.read()


async def test_a_slow_client_holds_the_worker_back(scripted: Any, routed: Any) -> None:
    written = 0

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(400):
            await response.write(b"x" * 65536)
            written += 65536
        return response

    one = await routed(await scripted(stream))
    async with one.client.get(f"{one.url}/v1/x") as reply:
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.2)
        assert 0 < written < 20 * 1024 * 1024, "the rest waits for the client"
        assert len(await reply.content.read()) == 400 * 65536


async def test_an_upload_streams_and_arrives_whole(scripted: Any, routed: Any) -> None:
    began = asyncio.Event()

    async def take(request: web.BaseRequest) -> web.Response:
        digest = hashlib.sha256()
        async for piece in request.content.iter_any():
            began.set()
            digest.update(piece)
        return web.json_response({"digest": digest.hexdigest()})

    one = await routed(await scripted(take))
    pieces = [bytes([n]) * 100_000 for n in range(50)]

    async def body() -> Any:
        for number, piece in enumerate(pieces):
            if number == 1:
                await asyncio.wait_for(began.wait(), 2)  # the first went through before the rest
            yield piece

    headers = {"Content-Type": "application/octet-stream"}
    async with one.client.post(f"{one.url}/v1/x", data=body(), headers=headers) as reply:
        told = await reply.json()
    assert told["digest"] == hashlib.sha256(b"".join(pieces)).hexdigest()


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_a_client_that_leaves_frees_the_worker_within_a_second(
    scripted: Any, routed: Any, eventually: Any, is_streaming: bool
) -> None:
    async def stay(request: web.BaseRequest) -> web.StreamResponse:
        await request.content.read()
        response = web.StreamResponse(headers=EVENTS)
        if is_streaming:
            await response.prepare(request)
            await response.write(b"data: 1\n\n")
        await asyncio.sleep(60)
        return response

    backend = await scripted(stay)
    one = await routed(backend)
    host, port = one.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(post(b'{"model":"m"}'))
    worker = one.router.fleet.get(backend.name)
    await eventually(lambda: worker.in_flight == 1)
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    writer.close()
    await eventually(lambda: backend.left == 1)
    assert time.monotonic() - began_s < 1.0
    await eventually(lambda: worker.in_flight == 0 and bool(one.records))
    assert one.records[0].status == 499


async def test_a_client_that_leaves_the_queue_is_gone(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    async def stay(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    one = await routed(await scripted(stay), max_in_flight=1)
    first = asyncio.create_task(one.chat())
    await eventually(lambda: one.router.admission.in_flight == 1)
    second = asyncio.create_task(one.chat())
    await eventually(lambda: one.router.admission.queued == 1)
    second.cancel()
    await eventually(lambda: one.router.admission.queued == 0)
    first.cancel()
    await eventually(lambda: one.router.admission.in_flight == 0)


# ---- losses


def dying(*pieces: bytes, headers: dict[str, str] = EVENTS) -> Any:
    """A handler that sends a part of a stream and dies."""

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        await request.content.read()
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        assert request.transport is not None
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response

    return stream


async def test_a_worker_lost_in_the_middle_of_events_is_told_and_breaks_the_transfer(
    scripted: Any, routed: Any
) -> None:
    backend = await scripted(dying(b"data: 1\n\n"))
    one = await routed(backend)
    _, body = raw_head(await exchange(one.url, post(b"{}")))
    assert not body.endswith(b"0\r\n\r\n"), "no clean end"
    events = [line for line in body.split(b"\r\n") if line.startswith(b"data: ")]
    assert events[0] == b"data: 1\n\n"
    error = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "worker_failed")
    assert one.records[0].status == 502


async def test_half_an_event_is_not_made_whole_by_the_error(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted(dying(b"data: 1\n\n", b'data: {"text": "hal')))
    _, body = raw_head(await exchange(one.url, post(b"{}")))
    assert b"worker_failed" not in body
    assert not body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "audio/wav"}, {"Content-Type": "audio/wav", "Content-Length": "99999999"}],
)
async def test_audio_that_is_cut_is_broken_and_nothing_is_added(
    scripted: Any, routed: Any, headers: dict[str, str]
) -> None:
    one = await routed(await scripted(dying(b"RIFF....", headers=headers)))
    async with one.client.post(f"{one.url}/v1/audio/speech", data=b"{}") as reply:
        assert await reply.content.readany() == b"RIFF...."
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.content.read()


async def test_a_worker_lost_before_its_answer_is_a_502_and_not_asked_elsewhere(
    scripted: Any, routed: Any
) -> None:
    asked: list[int] = []

    async def die(request: web.BaseRequest) -> web.Response:
        asked.append(1)
        await request.content.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    one = await routed(await scripted(die), await scripted(die))
    status, told = await one.chat()
    assert (status, told["error"]["code"]) == (502, "worker_failed")
    assert len(asked) == 1, "it may have begun: a second one could do it twice"


async def test_what_is_idempotent_is_asked_elsewhere(scripted: Any, routed: Any) -> None:
    asked: list[int] = []

    async def die(request: web.BaseRequest) -> web.Response:
        asked.append(1)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    bad, good = await scripted(die), await scripted()
    one = await routed(bad, good, policy="round_robin")
    for _ in range(4):
        async with one.client.get(f"{one.url}/v1/x") as reply:
            assert (await reply.json())["worker"] == good.name
    assert asked


async def test_a_worker_that_cannot_be_reached_is_passed_over(scripted: Any, routed: Any) -> None:
    gone, good = await scripted(), await scripted()
    one = await routed(gone, good, policy="round_robin", probe_interval_s=60.0)
    await gone.stop()
    for _ in range(6):
        status, told = await one.chat()
        assert (status, told["worker"]) == (200, good.name)
    tries = [record.tries for record in one.records]
    assert max(tries) == 2
    assert tries[-1] == 1, "after two faults it is down and asked no more"
    assert one.router.fleet.get(gone.name).state is WorkerState.DOWN


async def test_retries_are_bounded(scripted: Any, routed: Any) -> None:
    workers = [await scripted() for _ in range(5)]
    one = await routed(*workers, retries=2, probe_interval_s=60.0, down_after=9)
    for worker in workers:
        await worker.stop()
    began_s = time.monotonic()
    status, told = await one.chat()
    assert (status, told["error"]["code"]) == (503, "no_worker")
    assert one.records[0].tries == 3
    assert time.monotonic() - began_s > 0.07, "with a pause between them"


@pytest.mark.parametrize("code", ["not_ready", "draining", "paused", "overloaded"])
async def test_a_worker_that_has_not_begun_is_passed_over(
    scripted: Any, routed: Any, code: str
) -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        await request.content.read()
        return web.json_response({"error": {"code": code}}, status=503)

    bad, good = await scripted(refuse), await scripted()
    one = await routed(bad, good, policy="round_robin")
    for _ in range(4):
        assert (await one.chat())[1]["worker"] == good.name
    assert one.router.fleet.get(bad.name).state is WorkerState.READY


async def test_what_all_workers_refuse_is_refused_in_their_words(
    scripted: Any, routed: Any
) -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        body = {"error": {"code": "overloaded", "message": "of the worker"}}
        return web.json_response(body, status=503, headers={"Retry-After": "7"})

    one = await routed(await scripted(refuse), await scripted(refuse))
    async with one.client.post(f"{one.url}/v1/x", data=b"{}") as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (503, "7")
        assert (await reply.json())["error"]["message"] == "of the worker"


async def test_a_503_of_a_request_that_was_begun_is_not_asked_again(
    scripted: Any, routed: Any
) -> None:
    asked: list[int] = []

    async def fail(request: web.BaseRequest) -> web.Response:
        asked.append(1)
        return web.json_response({"error": {"code": "stage_died"}}, status=503)

    one = await routed(await scripted(fail), await scripted(fail))
    assert (await one.chat())[0] == 503
    assert len(asked) == 1


async def test_a_spoken_reply_is_looked_for_at_every_worker(scripted: Any, routed: Any) -> None:
    async def unknown(request: web.BaseRequest) -> web.Response:
        error = {"code": "invalid_value", "param": "messages.[1].audio.id", "message": "unknown"}
        return web.json_response({"error": error}, status=400)

    knows = await scripted()
    others = [await scripted(unknown) for _ in range(4)]
    one = await routed(*others, knows, retries=0, affinity=())
    hello = {"role": "user", "content": "hi"}
    named = {"messages": [hello, {"role": "assistant", "audio": {"id": "audio_1"}}]}
    for _ in range(5):
        status, told = await one.chat(named)
        assert (status, told["worker"]) == (200, knows.name)
    other = await routed(*others, retries=0)
    status, told = await other.chat(named)
    assert (status, told["error"]["message"]) == (400, "unknown")


async def test_a_hung_worker_is_cut_and_its_clients_are_told(scripted: Any, routed: Any) -> None:
    hung = False

    async def stay(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal hung
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        hung = True
        await asyncio.sleep(60)
        return response

    backend = await scripted(stay)
    one = await routed(backend, cut_after_s=0.5, probe_timeout_s=0.1)
    answer = backend.handle

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if hung:
            await asyncio.sleep(60)
        return await answer(request)

    backend.http.request_handler = handle
    _, body = raw_head(await exchange(one.url, post(b"{}")))
    assert b"no answer in 0.1 s" in body
    assert not body.endswith(b"0\r\n\r\n")
    assert one.router.fleet.get(backend.name).state is WorkerState.DOWN


# ---- limits


async def test_a_body_over_the_limit_is_refused(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, max_body_mib=1)
    async with one.client.post(f"{one.url}/v1/x", data=b"x" * 1048577) as reply:
        assert reply.status == 413
        error = (await reply.json())["error"]
    assert error["code"] == "payload_too_large"
    assert "--max-body-mib" in error["message"]
    assert not backend.seen


async def test_a_body_without_a_length_is_cut_off_at_the_limit(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, max_body_mib=1)

    async def body() -> Any:
        for _ in range(30):
            yield b"x" * 65536

    for kind in ("application/json", "application/octet-stream"):
        headers = {"Content-Type": kind}
        async with one.client.post(f"{one.url}/v1/x", data=body(), headers=headers) as reply:
            assert reply.status == 413, kind


async def test_who_asks_before_sending_is_told_to_go_on(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend)
    host, port = one.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        post(b"", "Expect: 100-continue", "Connection: close").replace(b"Length: 0", b"Length: 2")
    )
    assert (
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 1) == b"HTTP/1.1 100 Continue\r\n\r\n"
    )
    writer.write(b"{}")
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 OK")
    assert backend.seen[0].body == b"{}"
    assert "Expect" not in backend.seen[0].headers
    writer.close()


async def test_more_requests_than_places_wait_and_are_refused_beyond(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    go = asyncio.Event()

    async def stay(request: web.BaseRequest) -> web.Response:
        await go.wait()
        return web.json_response({})

    backend = await scripted(stay)
    one = await routed(backend, max_in_flight_per_worker=2, max_queue=1)
    inside = [asyncio.create_task(one.chat()) for _ in range(3)]
    await eventually(lambda: one.router.admission.queued == 1)
    async with one.client.post(f"{one.url}/v1/x", data=b"{}") as reply:
        assert reply.status == 503
        assert reply.headers["Retry-After"] == "1"
        assert (await reply.json())["error"]["code"] == "overloaded"
    assert one.router.fleet.get(backend.name).in_flight == 2
    go.set()
    assert [status for status, _ in await asyncio.gather(*inside)] == [200] * 3


async def test_the_router_reads_no_form_that_need_not_be_read(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend)
    body = b"--x\r\nno form at all"
    headers = {"Content-Type": "multipart/form-data; boundary=y"}
    async with one.client.post(
        f"{one.url}/v1/audio/transcriptions", data=body, headers=headers
    ) as reply:
        assert reply.status == 200
    assert backend.seen[0].body == body
