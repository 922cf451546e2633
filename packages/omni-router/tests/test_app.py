"""What the router answers itself, who may ask, and requests that name what one worker knows."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from omni_router.access import access_log, line_of
from omni_router.keys import KeyRing, Keys
from omni_router.worker import WorkerState

GUARDED = Keys(api=KeyRing.of(["user"]), admin=KeyRing.of(["boss"]))


async def get(one: Any, path: str, key: str | None = None, method: str = "GET") -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with one.client.request(method, one.url + path, headers=headers) as reply:
        text = await reply.text()
        is_json = reply.content_type == "application/json" and text
        return reply.status, json.loads(text) if is_json else text


async def test_probes_tell_how_the_fleet_is(scripted: Any, routed: Any) -> None:
    good, other = await scripted(), await scripted()
    one = await routed(good, other)
    assert await get(one, "/live") == (200, {"status": "live"})
    status, told = await get(one, "/health")
    assert (status, told["status"]) == (200, "ready")
    assert told["workers"][good.name] == {"state": "ready", "why": "it is ready", "epoch": 1}
    assert await get(one, "/ready") == (200, {"status": "ready", "waiting_for": []})
    other.ready = 503
    await one.until(other.name, WorkerState.DOWN)
    assert await get(one, "/ready") == (200, {"status": "degraded", "waiting_for": [other.name]})
    one.router.is_draining = True
    assert (await get(one, "/ready"))[0] == 503
    status, told = await get(one, "/v1/x")
    assert (status, told["error"]["code"]) == (503, "draining")
    assert (await get(one, "/health"))[0] == 200


async def test_metrics_merge_the_workers_numbers(scripted: Any, routed: Any) -> None:
    backend = await scripted(metrics="omni_queue_depth 3\n")
    one = await routed(backend)
    await one.chat()
    status, text = await get(one, "/metrics")
    assert status == 200
    assert f'omni_router_requests_total{{status="200",worker="{backend.name}"}} 1.0' in text
    assert f'omni_router_worker_state{{state="ready",worker="{backend.name}"}} 1.0' in text
    assert f'omni_queue_depth{{worker="{backend.name}"}} 3.0' in text
    assert "omni_router_in_flight 0.0" in text
    assert "omni_router_time_to_first_byte_seconds_count 1.0" in text


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/v1/x", None, 401),
        ("/v1/x", "wrong", 401),
        ("/v1/x", "user", 200),
        ("/v1/x", "boss", 200),
        ("/version", None, 401),
        ("/version", "user", 200),
        ("/docs", None, 401),
        ("/live", None, 200),
        ("/health", None, 200),
        ("/ready", None, 200),
        ("/metrics", None, 200),
        ("/", None, 200),
        ("/playground/page.js", None, 200),
        ("/v1/audio/voices", None, 200),
        ("/router/v1/workers", None, 401),
        ("/router/v1/workers", "user", 403),
        ("/router/v1/workers", "boss", 200),
        ("/%72outer/v1/workers", "user", 403),
        ("/router/v1/nothing", "boss", 404),
        ("/admin/info", "boss", 404),
        ("/%61dmin/info", "boss", 404),
    ],
)
async def test_keys_open_what_they_should(
    scripted: Any, routed: Any, path: str, key: str | None, status: int
) -> None:
    from yarl import URL

    one = await routed(await scripted(), keys=GUARDED)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = URL(one.url + path, encoded=True)
    async with one.client.get(url, headers=headers) as reply:
        assert reply.status == status
        if status == 401:
            assert reply.headers["WWW-Authenticate"].startswith("Bearer")
            assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def test_a_key_among_subprotocols_opens_a_session(scripted: Any, routed: Any) -> None:
    import aiohttp

    one = await routed(await scripted(), keys=GUARDED)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await one.client.ws_connect(f"{one.url}/v1/realtime", protocols=("realtime",))
    assert caught.value.status == 401
    protocols = ("realtime", "openai-insecure-api-key.user")
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await one.client.ws_connect(f"{one.url}/v1/realtime", protocols=protocols)
    assert caught.value.status != 401, "it came to the worker, which speaks no WebSocket here"


async def test_a_browser_may_ask_whether_it_may_ask(scripted: Any, routed: Any) -> None:
    async def cors(request: web.BaseRequest) -> web.Response:
        return web.Response(headers={"Access-Control-Allow-Origin": "*"})

    one = await routed(await scripted(cors), keys=GUARDED)
    asks = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
    async with one.client.options(f"{one.url}/v1/x", headers=asks) as reply:
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, "*")
    async with one.client.options(f"{one.url}/v1/x") as reply:
        assert reply.status == 401
    async with one.client.options(f"{one.url}/router/v1/workers", headers=asks) as reply:
        assert reply.status == 401


async def test_there_are_no_admin_routes_without_an_admin_key(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted())
    status, told = await get(one, "/router/v1/workers")
    assert status == 404
    assert "--admin-key-file" in told["error"]["message"]


async def test_metrics_may_need_a_key(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted(), keys=GUARDED, metrics_access="key")
    assert (await get(one, "/metrics"))[0] == 401
    assert (await get(one, "/metrics", "user"))[0] == 200


async def test_own_routes_are_only_read(scripted: Any, routed: Any) -> None:
    one = await routed(await scripted())
    status, told = await get(one, "/health", method="POST")
    assert (status, told["error"]["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "target",
    [
        "http://example.com/v1/x",
        "/v1/../admin/pause",
        "/v1/%2e%2e/admin/pause",
        "/./admin/pause",
        "/v1/x/..",
        "/%61dmin/pause",
    ],
)
async def test_what_does_not_pass_passes_in_no_writing(
    scripted: Any, routed: Any, target: str
) -> None:
    """Other addresses, and paths to operators' routes: `POST` them as they stand."""
    backend = await scripted()
    one = await routed(backend)
    host, port = one.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 404")
    assert backend.seen == []
    writer.close()


async def test_models_are_listed_together(scripted: Any, routed: Any, model_object: Any) -> None:
    text = model_object("one", capabilities={"speech": False, "tools": True})
    speech = model_object("one", output_modalities=["text", "audio"], capabilities={"speech": True})
    one = await routed(
        await scripted(models=[text]),
        await scripted(models=[speech]),
        await scripted(models=[model_object("two")]),
    )
    status, told = await get(one, "/v1/models")
    assert (status, told["object"]) == (200, "list")
    first, second = sorted(told["data"], key=lambda model: model["id"])
    assert (first["id"], second["id"]) == ("one", "two")
    assert first["output_modalities"] == ["text", "audio"]
    assert first["capabilities"] == {"speech": True, "tools": True}
    assert await get(one, "/v1/models/one") == (200, first)


async def test_one_model_is_asked_of_who_serves_it(
    scripted: Any, routed: Any, model_object: Any
) -> None:
    one, two = [await scripted(models=[model_object(f"org/{n}")]) for n in ("one", "two")]
    router = await routed(one, two)
    for name, backend in (("org/one", one), ("org/two", two), ("org%2Ftwo", two)):
        status, told = await get(router, f"/v1/models/{name}")
        assert (status, told["id"]) == (200, name.replace("%2F", "/"))
        assert backend.seen.pop().target == f"/v1/models/{name}"
    status, told = await get(router, "/v1/models/three")
    assert (status, told["error"]["code"]) == (404, "model_not_found")


async def test_a_cancel_reaches_the_worker_that_has_the_request(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    held: dict[str, asyncio.Event] = {}
    asked: list[str] = []

    def worker(name: str) -> Any:
        async def handler(request: web.BaseRequest) -> web.Response:
            if request.path.endswith("/cancel"):
                asked.append(name)
                named = request.path.split("/")[3]
                if named not in held or held[named].is_set():
                    return web.json_response({"error": {}}, status=404)
                held[named].set()
                return web.json_response({"cancelled": 1})
            event = held.setdefault(request.headers["X-Request-Id"], asyncio.Event())
            await event.wait()
            return web.json_response({"error": {"code": "cancelled"}}, status=499)

        return handler

    workers = [await scripted(worker(str(n))) for n in range(3)]
    one = await routed(*workers)
    task = asyncio.create_task(one.chat(headers={"X-Request-Id": "mine"}))
    await eventually(lambda: "mine" in held)
    status, told = await get(one, "/v1/requests/mine/cancel", method="POST")
    assert (status, told) == (200, {"cancelled": 1})
    assert len(asked) == 1
    assert (await task)[0] == 499
    asked.clear()
    assert (await get(one, "/v1/requests/mine/cancel", method="POST"))[0] == 404
    assert sorted(asked) == ["0", "1", "2"], "nobody is known to have it: all are asked"


async def test_a_cancel_by_the_id_that_the_worker_drew_is_its_own(
    scripted: Any, routed: Any
) -> None:
    asked: list[str] = []
    over = asyncio.Event()

    def worker(name: str) -> Any:
        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            if request.path.endswith("/cancel"):
                asked.append(name)
                over.set()
                return web.json_response({})
            response = web.StreamResponse(headers={"X-Request-Id": f"chatcmpl-{name}"})
            await response.prepare(request)
            await response.write(b"x")
            await over.wait()
            return response

        return handler

    one = await routed(*[await scripted(worker(str(n))) for n in range(4)])
    async with one.client.post(f"{one.url}/v1/chat/completions", data=b"{}") as reply:
        await reply.content.readany()
        named = reply.headers["X-Request-Id"]
        assert (await get(one, f"/v1/requests/{named}/cancel", method="POST"))[0] == 200
        await reply.content.read()
    assert asked == [named.removeprefix("chatcmpl-")]


async def test_requests_may_share_an_id(scripted: Any, routed: Any) -> None:
    async def slow(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(0.05)
        return web.json_response({})

    one = await routed(await scripted(slow))
    named = {"X-Request-Id": "mine"}
    answers = await asyncio.gather(*[one.chat(headers=dict(named)) for _ in range(3)])
    assert [status for status, _ in answers] == [200] * 3


async def test_a_cancel_needs_no_place(scripted: Any, routed: Any, eventually: Any) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        if request.path.endswith("/cancel"):
            return web.json_response({})
        await asyncio.sleep(60)
        raise AssertionError

    one = await routed(await scripted(handler), max_in_flight=1, max_queue=0)
    task = asyncio.create_task(one.chat())
    await eventually(lambda: one.router.admission.in_flight == 1)
    assert (await get(one, "/v1/requests/x/cancel", method="POST"))[0] == 200
    task.cancel()


async def test_a_voice_is_described_and_deleted_by_who_has_it(scripted: Any, routed: Any) -> None:
    async def knows(request: web.BaseRequest) -> web.Response:
        return web.json_response({"deleted": True})

    async def unknown(request: web.BaseRequest) -> web.Response:
        return web.json_response({"error": {"code": "not_found"}}, status=404)

    one = await routed(*[await scripted(unknown) for _ in range(3)], await scripted(knows))
    status, told = await get(one, "/v1/audio/voices/mine", method="DELETE")
    assert (status, told) == (200, {"deleted": True})


async def test_the_log_has_the_worker_and_where_the_time_went(
    scripted: Any, routed: Any, tmp_path: Any
) -> None:
    backend = await scripted()
    with access_log(str(tmp_path / "access")) as on_access:
        one = await routed(backend, on_access=on_access)
        await one.chat(headers={"X-Request-Id": "mine", "Authorization": "Bearer k"})
        await get(one, "/v1/models/none")
        await get(one, "/live")
    first, second, third = map(json.loads, (tmp_path / "access").read_text().splitlines())
    assert first["worker"] == backend.name
    assert (first["id"], first["status"], first["tries"]) == ("mine", 200, 1)
    assert first["route"] == "/v1/chat/completions"
    assert 0 <= first["queue_ms"] <= first["asked_ms"] <= first["head_ms"] <= first["ms"] < 5000
    assert len(first["client"]) == 16
    assert first["client"] != "k"
    assert (second["status"], second["code"]) == (404, "model_not_found")
    assert "worker" not in third
    assert third["client"] == "127.0.0.1"
    assert line_of(one.records[0])["worker"] == backend.name


async def test_a_bug_costs_its_own_request(scripted: Any, routed: Any, monkeypatch: Any) -> None:
    one = await routed(await scripted())

    def bug(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(one.router.fleet, "choose", bug)
        status, told = await one.chat()
    assert (status, told["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" in told["error"]["message"]
    assert (await one.chat())[0] == 200
    assert one.router.admission.in_flight == 0
