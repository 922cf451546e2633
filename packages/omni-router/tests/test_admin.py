"""What an operator sees of the fleet and does to it."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from omni_router.keys import KeyRing, Keys
from omni_router.worker import WorkerState

KEYS = Keys(admin=KeyRing.of(["boss"]))
KEY = {"Authorization": "Bearer boss"}


async def ask(one: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    url = f"{one.url}/router/v1/{path}"
    async with one.client.request(method, url, json=body, headers=KEY) as reply:
        return reply.status, await reply.json()


async def test_workers_are_listed(scripted: Any, routed: Any) -> None:
    backend = await scripted(metrics="omni_queue_depth 2\n")
    one = await routed(backend, keys=KEYS)
    await one.chat()
    status, told = await ask(one, "GET", "workers")
    [shown] = told["workers"]
    assert status == 200
    assert shown.pop("ready_for_s") >= 0
    assert shown == {
        "name": backend.name,
        "url": backend.url,
        "state": "ready",
        "why": "it is ready",
        "models": ["m"],
        "in_flight": 0,
        "max_in_flight": 256,
        "reported": 2,
        "weight": 1.0,
        "epoch": 1,
        "requests": 1,
    }
    assert (await ask(one, "GET", f"workers/{backend.name}"))[1]["url"] == backend.url
    assert (await ask(one, "GET", "workers/nobody"))[0] == 404
    assert (await ask(one, "PUT", "workers"))[0] == 405


async def test_a_worker_is_added_and_answers(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(keys=KEYS)
    assert (await one.chat())[0] == 503
    spec = {"url": backend.url + "/", "name": "w", "max_in_flight": 3, "weight": 2}
    status, told = await ask(one, "POST", "workers", spec)
    assert (status, told["state"], told["max_in_flight"]) == (201, "starting", 3)
    await one.until("w", WorkerState.READY)
    assert (await one.chat())[0] == 200


async def test_what_is_no_worker_is_refused(routed: Any, scripted: Any) -> None:
    backend = await scripted()
    one = await routed(backend, keys=KEYS)
    for body in ({"url": "nonsense"}, {}, {"url": backend.url, "nmae": "x"}, [], {"url": 3}):
        assert (await ask(one, "POST", "workers", body))[0] == 400, body
    async with one.client.post(
        f"{one.url}/router/v1/workers", data=b"x" * 20_000, headers=KEY
    ) as reply:
        assert reply.status == 413


async def test_a_name_is_one_workers(scripted: Any, routed: Any) -> None:
    backend, other = await scripted(), await scripted()
    one = await routed(backend, keys=KEYS)
    status, told = await ask(one, "POST", "workers", {"url": other.url, "name": backend.name})
    assert (status, told["error"]["code"]) == (409, "worker_exists")


async def test_a_worker_registers_again_after_a_restart(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, keys=KEYS, probe_interval_s=60.0)
    port = int(backend.url.rpartition(":")[2])
    await backend.stop()
    for _ in range(2):
        await one.chat()
    assert one.router.fleet.get(backend.name).state is WorkerState.DOWN
    backend.models[0]["created"] = 2
    await backend.start(port)
    status, _ = await ask(one, "POST", "workers", {"url": backend.url})
    assert status == 201
    await one.until(backend.name, WorkerState.READY)
    assert one.router.fleet.get(backend.name).epoch == 2


async def test_a_drained_worker_ends_what_it_has_and_gets_nothing_new(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    go = asyncio.Event()

    async def stay(request: web.BaseRequest) -> web.Response:
        await go.wait()
        return web.json_response({"worker": "drained"})

    backend = await scripted(stay)
    one = await routed(backend, keys=KEYS)
    inside = asyncio.create_task(one.chat())
    await eventually(lambda: one.router.admission.in_flight == 1)
    status, told = await ask(one, "POST", f"workers/{backend.name}/drain")
    assert (status, told["state"], told["in_flight"]) == (200, "draining", 1)
    assert (await one.chat())[0] == 503
    go.set()
    assert await inside == (200, {"worker": "drained"})
    await asyncio.sleep(0.2)  # probes say that it is ready, which does not matter
    assert one.router.fleet.get(backend.name).state is WorkerState.DRAINING
    assert (await ask(one, "POST", f"workers/{backend.name}/resume"))[0] == 200
    await one.until(backend.name, WorkerState.READY)
    assert (await ask(one, "POST", f"workers/{backend.name}/resume"))[0] == 409


async def test_a_removed_worker_ends_its_requests_first(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    go = asyncio.Event()

    async def stay(request: web.BaseRequest) -> web.Response:
        await go.wait()
        return web.json_response({})

    backend = await scripted(stay)
    one = await routed(backend, keys=KEYS)
    inside = asyncio.create_task(one.chat())
    await eventually(lambda: one.router.admission.in_flight == 1)
    removal = asyncio.create_task(ask(one, "DELETE", f"workers/{backend.name}", {"wait_s": 5}))
    await asyncio.sleep(0.1)
    assert not removal.done()
    go.set()
    assert (await inside)[0] == 200
    assert await removal == (200, {"removed": backend.name, "cut": 0})
    assert len(one.router.fleet) == 0
    assert (await ask(one, "DELETE", f"workers/{backend.name}"))[0] == 404
    await asyncio.sleep(0.1)
    count = len(backend.probes)
    await asyncio.sleep(0.2)
    assert len(backend.probes) == count, "nobody asks it any more"


async def test_a_removal_cuts_what_does_not_end(
    scripted: Any, routed: Any, eventually: Any
) -> None:
    async def stay(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    backend = await scripted(stay)
    one = await routed(backend, keys=KEYS)
    inside = asyncio.create_task(one.chat())
    await eventually(lambda: one.router.admission.in_flight == 1)
    answer = await ask(one, "DELETE", f"workers/{backend.name}", {"wait_s": 0})
    assert answer == (200, {"removed": backend.name, "cut": 1})
    status, told = await inside
    assert (status, told["error"]["code"]) == (502, "worker_failed")
    await eventually(lambda: backend.left == 1)


async def test_a_held_worker_is_left_alone(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, keys=KEYS)
    worker = one.router.fleet.get(backend.name)
    one.router.change(worker, WorkerState.HELD, "its weights are unknown")
    assert (await one.chat())[0] == 503
    for method, path, body in (
        ("POST", f"workers/{backend.name}/drain", None),
        ("POST", f"workers/{backend.name}/resume", None),
        ("POST", "workers", {"url": backend.url}),
    ):
        status, told = await ask(one, method, path, body)
        assert status == 409, path
        assert "held" in told["error"]["message"]
    assert worker.state is WorkerState.HELD


async def test_several_processes_are_changed_by_their_file(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, keys=KEYS, processes=2)
    for method, path in (
        ("POST", "workers"),
        ("DELETE", f"workers/{backend.name}"),
        ("POST", f"workers/{backend.name}/drain"),
        ("POST", f"workers/{backend.name}/resume"),
    ):
        status, told = await ask(
            one, method, path, {} if method == "DELETE" else {"url": "http://x"}
        )
        assert (status, told["error"]["code"]) == (409, "several_processes"), path
        assert "SIGHUP" in told["error"]["message"]
    assert (await ask(one, "GET", "workers"))[0] == 200


async def test_processes_share_the_bounds(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend, processes=4, max_in_flight_per_worker=10, keys=KEYS)
    assert one.router.fleet.get(backend.name).max_in_flight == 2
