"""Realtime sessions through the router: messages, closes, refusals and losses."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from websockets.exceptions import ConnectionClosedError

from omni_router.worker import WorkerState

REALTIME = "/v1/realtime?model=m&x=%20"


def echo(**options: Any) -> Any:
    """A worker's socket that sends back what comes; "close N" closes it, "die" kills it."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=0, compress=False, **options)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            elif message.data == "where":
                told = {"target": request.raw_path, "headers": dict(request.headers)}
                await socket.send_json(told)
            elif message.data == "die":
                assert request.transport is not None
                request.transport.abort()
            elif message.data.startswith("close "):
                code = int(message.data.split()[1])
                await socket.close(code=code, message=b"the reason")
            else:
                await socket.send_str(message.data)
        return socket

    return handler


async def ended(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    message = await asyncio.wait_for(socket.receive(), 5)
    assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING)
    return socket.close_code


async def test_messages_pass_both_ways(scripted: Any, routed: Any) -> None:
    backend = await scripted(echo(protocols=("realtime",)))
    one = await routed(backend)
    headers = {"Authorization": "Bearer k", "OpenAI-Beta": "realtime=v1"}
    protocols = ("realtime", "openai-insecure-api-key.k")
    async with one.client.ws_connect(
        one.url + REALTIME, headers=headers, protocols=protocols, compress=15
    ) as socket:
        assert socket.protocol == "realtime"
        assert socket.compress == 0, "audio does not get smaller, and time is lost"
        await socket.send_str("hällo")
        assert await socket.receive_str() == "hällo"
        await socket.send_bytes(bytes(range(256)))
        assert await socket.receive_bytes() == bytes(range(256))
        await socket.send_str("where")
        told = await socket.receive_json()
    assert told["target"] == REALTIME
    assert told["headers"]["Authorization"] == "Bearer k"
    assert told["headers"]["OpenAI-Beta"] == "realtime=v1"
    offered = told["headers"]["Sec-WebSocket-Protocol"].replace(" ", "")
    assert offered == "realtime,openai-insecure-api-key.k"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"Sec-WebSocket-Version": "99", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="},
        {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "short"},
    ],
)
async def test_what_is_no_handshake_is_refused_here(
    scripted: Any, routed: Any, more: dict[str, str]
) -> None:
    backend = await scripted(echo())
    one = await routed(backend)
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", **more}
    async with one.client.get(one.url + REALTIME, headers=headers) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "invalid_request"
    assert backend.seen == []


async def test_a_worker_that_goes_before_it_is_asked(
    scripted: Any, routed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost between the connection and the handshake: the library calls that a close."""

    async def lost(*_: Any, **__: Any) -> None:
        raise ConnectionClosedError(None, None)

    one = await routed(await scripted(echo()))
    monkeypatch.setattr("omni_router.proxy.websocket.connect", lost)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await one.client.ws_connect(one.url + REALTIME)
    assert refused.value.status == 503


async def test_messages_of_5_mb_pass(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted(echo()))
    async with one.client.ws_connect(one.url + REALTIME, max_msg_size=0) as socket:
        await socket.send_str("x" * 5_000_000)
        assert len(await socket.receive_str()) == 5_000_000


async def test_a_message_over_the_limit_closes_with_1009(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted(echo()), max_message_mib=1)
    async with one.client.ws_connect(one.url + REALTIME, max_msg_size=0) as socket:
        await socket.send_str("x" * 2_000_000)
        assert await ended(socket) == 1009


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 4321])
async def test_the_workers_close_reaches_the_client(scripted: Any, routed: Any, code: int) -> None:
    one = await routed(await scripted(echo()))
    async with one.client.ws_connect(one.url + REALTIME, autoclose=False) as socket:
        await socket.send_str(f"close {code}")
        message = await asyncio.wait_for(socket.receive(), 5)
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, code, "the reason")


async def test_the_clients_close_reaches_the_worker(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    codes: list[int | None] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        codes.append(socket.close_code)
        return socket

    backend = await scripted(handler)
    one = await routed(backend)
    async with one.client.ws_connect(one.url + REALTIME) as socket:
        await socket.close(code=4001, message=b"bye")
    await eventually(lambda: codes == [4001])
    await eventually(lambda: one.router.fleet.get(backend.name).in_flight == 0)


async def test_a_client_that_vanishes_ends_the_session(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    over = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        over.set()
        return socket

    backend = await scripted(handler)
    one = await routed(backend)
    socket = await one.client.ws_connect(one.url + REALTIME)
    socket._response.connection.transport.abort()
    await asyncio.wait_for(over.wait(), 1)
    await eventually(lambda: one.router.fleet.get(backend.name).in_flight == 0)


async def test_a_worker_that_is_lost_is_1011(scripted: Any, routed: Any, eventually: Any) -> None:
    backend = await scripted(echo())
    one = await routed(backend)
    async with one.client.ws_connect(one.url + REALTIME) as socket:
        await socket.send_str("die")
        assert await ended(socket) == 1011
    await eventually(lambda: bool(one.records))
    assert one.records[-1].status == 502


async def test_a_removed_worker_ends_its_sessions(scripted: Any, routed: Any) -> None:
    backend = await scripted(echo())
    one = await routed(backend)
    async with one.client.ws_connect(one.url + REALTIME) as socket:
        assert await one.router.remove(backend.name, wait_s=0) == 1
        assert await ended(socket) == 1011


async def test_a_router_that_ends_says_so(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted(echo()), drain_timeout_s=0)
    async with one.client.ws_connect(one.url + REALTIME) as socket:
        await one.router.drain_all()
        assert await ended(socket) == 1001


async def test_a_refusal_is_the_workers_own(scripted: Any, routed: Any) -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        body = {"error": {"message": "of the worker", "code": "overloaded"}}
        return web.json_response(body, status=503, headers={"Retry-After": "9"})

    one = await routed(await scripted(refuse))
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    }
    async with one.client.get(one.url + REALTIME, headers=headers) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (503, "9")
        assert (await reply.json())["error"]["message"] == "of the worker"


async def test_a_session_goes_to_who_can_be_reached(scripted: Any, routed: Any) -> None:
    gone, good = await scripted(), await scripted(echo())
    one = await routed(gone, good, policy="round_robin", probe_interval_s=60.0)
    await gone.stop()
    for _ in range(3):
        async with one.client.ws_connect(one.url + REALTIME) as socket:
            await socket.send_str("x")
            assert await socket.receive_str() == "x"
    assert one.router.fleet.get(gone.name).state is not WorkerState.READY


async def test_a_session_goes_to_its_model(scripted: Any, routed: Any, model_object: Any) -> None:
    one = await scripted(models=[model_object("one")])
    two = await scripted(echo(), models=[model_object("two")])
    router = await routed(one, two)
    async with router.client.ws_connect(f"{router.url}/v1/realtime?model=two") as socket:
        await socket.send_str("x")
        assert await socket.receive_str() == "x"
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await router.client.ws_connect(f"{router.url}/v1/realtime?model=three")
    assert caught.value.status == 404


async def test_a_client_that_does_not_read_holds_the_worker_back(
    scripted: Any, routed: Any
) -> None:
    sent = 0

    async def flood(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        for _ in range(600):
            await socket.send_bytes(b"x" * 100_000)
            sent += 100_000
        return socket

    one = await routed(await scripted(flood))
    async with one.client.ws_connect(one.url + REALTIME, max_msg_size=0) as socket:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < 40_000_000
        count = 0
        async for message in socket:
            count += len(message.data)
        assert count == 60_000_000
