"""Who may open a session, what is read and sent, and how it ends: over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from omni_core.types import AudioDelta, Finished, Usage
from omni_server.access import OnAccess, look_away
from omni_server.app import guarded, server_context
from omni_server.context import ServerContext
from omni_server.http import bind, http_server
from omni_server.keys import KeyRing
from omni_server.realtime.vad import Detection
from omni_server.settings import Settings

SOME_S = 5.0
Serve = Callable[..., AbstractAsyncContextManager[tuple[ServerContext, str]]]


@pytest.fixture
def serve(pipeline: Any, kit: Any, sounds: Any) -> Serve:
    @asynccontextmanager
    async def serving(
        on_access: OnAccess = look_away, **settings: Any
    ) -> AsyncIterator[tuple[ServerContext, str]]:
        context = server_context(pipeline, Settings(served_model_name=kit.MODEL, **settings))
        context = replace(context, speech=Detection(sounds.LoudIsSpeech))
        listener = bind("127.0.0.1", 0)
        server = http_server(guarded(context, on_access), drain_timeout_s=1)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield context, f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/realtime"
        finally:
            server.should_exit = True
            await running

    return serving


async def said(socket: Any, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(SOME_S):
        while True:
            event: dict[str, Any] = json.loads(await socket.recv())
            if event["type"] == kind:
                return event


async def tell(socket: Any, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def refused(url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, **options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]


async def gone(context: ServerContext) -> None:
    """Until no session holds anything, which takes no second."""
    async with asyncio.timeout(1.0):
        while context.metrics.realtime_sessions.collect()[0].samples[0].value:
            await asyncio.sleep(0.005)
    assert context.pipeline.running == 0  # type: ignore[attr-defined]
    assert context.door.inside == 0


async def test_keys_are_checked_wherever_they_are(serve):
    async with serve(api_keys=KeyRing.of(["secret"])) as (_, url):
        assert (await refused(url))[0] == 401
        status, error = await refused(url, additional_headers={"Authorization": "Bearer wrong"})
        assert (status, error["code"]) == (401, "invalid_api_key")
        async with connect(url, additional_headers={"Authorization": "Bearer secret"}) as socket:
            await said(socket, "session.created")
        offered = ["realtime", "openai-insecure-api-key.secret", "openai-beta.realtime-v1"]
        async with connect(url, subprotocols=offered) as socket:
            assert socket.subprotocol == "realtime"
            await said(socket, "conversation.created")


@pytest.mark.parametrize("key", ["c2VjcmV0/+==", "a,b", "~~~?>"])
async def test_a_key_that_names_no_subprotocol_is_offered_in_base64url(serve, key):
    coded = base64.urlsafe_b64encode(key.encode()).decode()
    async with serve(api_keys=KeyRing.of([key])) as (_, url):
        async with connect(url, subprotocols=["realtime", named(coded.rstrip("="))]) as socket:
            assert socket.subprotocol == "realtime"
            await said(socket, "session.created")
        for wrong in (coded.rstrip("=")[:-1], "_w", "x", "!!!!"):
            status, error = await refused(url, subprotocols=["realtime", named(wrong)])
            assert (status, error["code"]) == (401, "invalid_api_key")
        status, error = await refused(url, subprotocols=["realtime", named("")])
        assert (status, error["code"]) == (401, "missing_api_key")


def named(coded: str) -> Any:
    return f"omni-api-key-base64url.{coded}"


async def test_pages_of_elsewhere_may_not_connect(serve):
    async with serve(cors_origins=("https://friend.example",)) as (_, url):
        for origin in ("https://evil.example", "http://["):
            status, error = await refused(url, origin=origin)
            assert (status, error["code"]) == (403, "origin_not_allowed")
        own = url.replace("ws://", "http://").removesuffix("/v1/realtime")
        for origin in ("https://friend.example", own):
            async with connect(url, origin=origin) as socket:
                await said(socket, "session.created")


async def test_what_cannot_be_opened_is_refused_with_the_reason(serve, kit):
    async with serve(max_realtime_sessions=1, rate_limit=6) as (context, url):
        assert (await refused(f"{url}?model=gpt-realtime"))[1]["code"] == "model_not_found"
        assert (await refused(f"{url}?intent=sing"))[1]["param"] == "intent"
        async with connect(f"{url}?model={kit.MODEL}&intent=transcription") as socket:
            created = await said(socket, "session.created")
            assert created["session"]["type"] == "transcription"
            assert (await refused(url))[0] == 503
        await gone(context)
        context.door.pause()
        assert (await refused(url))[1]["code"] == "paused"
        context.door.open()
        async with connect(url) as socket:
            await said(socket, "session.created")
        assert (await refused(url))[0] == 429


async def test_a_session_is_one_line_of_the_access_log(serve, kit):
    records: list[Any] = []
    async with serve(records.append) as (context, url):
        async with connect(url, additional_headers={"x-request-id": "call-7"}) as socket:
            assert socket.response.headers["x-request-id"] == "call-7"
            for _ in range(2):
                await tell(socket, "response.create", response={"output_modalities": ["text"]})
                await said(socket, "response.done")
            assert records == []
        await gone(context)
        await refused(f"{url}?model=other")
    held, turned_away = records
    assert (held.method, held.route, held.status) == ("WEBSOCKET", "/v1/realtime", 101)
    assert held.request_id == "call-7"
    assert held.usage.prompt_tokens == 2 * kit.USAGE.prompt_tokens
    assert turned_away.status == 404


async def test_frames_that_are_no_events(serve):
    async with serve() as (_, url), connect(url, max_size=None) as socket:
        for frame in (b"\x00\x01", "nonsense", "", "[]", '{"type": "no.such"}'):
            await socket.send(frame)
            assert (await said(socket, "error"))["error"]["type"] == "invalid_request_error"
        await tell(socket, "input_audio_buffer.append", audio="A" * (20 << 20 | 4))
        assert (await said(socket, "error"))["error"]["code"] == "payload_too_large"
        await tell(socket, "response.create", response={"output_modalities": ["text"]})
        assert (await said(socket, "response.done"))["response"]["status"] == "completed"


async def test_a_frame_that_is_far_too_large_closes_the_socket(serve):
    async with serve() as (context, url), connect(url) as socket:
        await said(socket, "session.created")
        with suppress(ConnectionClosed):
            await socket.send("A" * (33 << 20))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd.code == 1009
        await gone(context)


async def test_a_client_that_leaves_in_the_middle_ends_what_runs(serve, pipeline, kit):
    pipeline.script = lambda request: [kit.sound(0, 4_000), asyncio.Event()]
    async with serve() as (context, url):
        for number in range(20):
            async with connect(url) as socket:
                await tell(socket, "response.create")
                await said(socket, "response.output_audio.delta")
                assert pipeline.running == 1
                if number % 2:
                    socket.transport.abort()
                else:
                    await socket.close()
            await gone(context)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(said(await connect(url), "response.created"), 0.05)


async def test_a_client_that_does_not_read_is_closed_with_the_reason(serve, pipeline, kit):
    second = AudioDelta(samples=kit.sound(0, 24_000).samples, sample_rate=24_000)
    end = Finished(finish_reason="stop", usage=Usage())
    pipeline.script = lambda request: [*[second] * 1_200, end]
    async with serve() as (context, url):
        async with connect(url, max_queue=1) as socket:
            await said(socket, "session.created")
            await tell(socket, "response.create")
            async with asyncio.timeout(SOME_S):
                while not pipeline.requests or pipeline.running:
                    await asyncio.sleep(0.01)
            with pytest.raises(ConnectionClosed) as closed:
                await said(socket, "response.done")
            assert closed.value.rcvd.code == 1008
            assert "read faster" in closed.value.rcvd.reason
        await gone(context)


async def test_a_server_that_ends_says_so_once_it_has_answered(serve, pipeline):
    going_on = asyncio.Event()
    end = Finished(finish_reason="stop", usage=Usage())
    pipeline.script = lambda request: [going_on, end]
    async with serve() as (context, url), connect(url) as socket, connect(url) as idle:
        await said(idle, "session.created")
        await tell(socket, "response.create")
        await said(socket, "response.created")
        context.door.drain()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.recv()
        assert closed.value.rcvd.code == 1001
        await tell(socket, "response.create")
        await said(socket, "error")
        going_on.set()
        await said(socket, "response.done")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd.code == 1001
