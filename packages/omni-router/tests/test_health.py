"""Whether workers live: what one answer changes, and what it takes to change more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import aiohttp
import pytest

from omni_router.health import Heard, Hysteresis, Watch
from omni_router.worker import Worker, WorkerState

GOOD, BAD = Heard(True, "it is ready"), Heard(False, "GET /ready says 503")
SILENT = Heard(False, "no answer", reached=False)
RULES = Hysteresis(interval_s=0.02, timeout_s=0.2, down_after=3, up_after=2, cut_after_s=30.0)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as one:
        yield one


def watch(
    session: aiohttp.ClientSession, url: str = "http://127.0.0.1:9", **more: Any
) -> tuple[Watch, Worker, list[WorkerState]]:
    worker, told = Worker("a", url, 10), list[WorkerState]()
    rules = {name: getattr(RULES, name) for name in RULES.__slots__} | more
    one = Watch(
        worker,
        session,
        Hysteresis(**rules),
        lambda changed: told.append(changed.state),
        headers={"Authorization": "Bearer k"},
        random=Random(1),
    )
    return one, worker, told


async def test_one_good_answer_starts_a_worker(session: aiohttp.ClientSession) -> None:
    one, worker, told = watch(session)
    one.hear(GOOD)
    assert worker.state is WorkerState.READY
    assert told == [WorkerState.READY]


async def test_failures_make_suspect_and_then_down(session: aiohttp.ClientSession) -> None:
    one, worker, told = watch(session)
    for heard in (GOOD, BAD, BAD, BAD):
        one.hear(heard)
    assert told == [WorkerState.READY, WorkerState.SUSPECT, WorkerState.DOWN]
    assert worker.why == "GET /ready says 503"


async def test_routers_do_not_ask_in_step(session: aiohttp.ClientSession) -> None:
    one, _, _ = watch(session, interval_s=10.0)
    pauses = [one.pause_s() for _ in range(200)]
    assert 8.0 <= min(pauses) < 8.5
    assert 11.5 < max(pauses) <= 12.0


async def test_one_odd_answer_among_good_ones_changes_little(
    session: aiohttp.ClientSession,
) -> None:
    one, worker, _ = watch(session)
    for heard in (GOOD, BAD, BAD, GOOD, BAD, BAD, GOOD):
        one.hear(heard)
    assert worker.state is WorkerState.READY


async def test_a_worker_that_was_down_must_be_good_for_a_while(
    session: aiohttp.ClientSession,
) -> None:
    one, worker, _ = watch(session)
    for heard in (BAD, BAD, BAD, GOOD, BAD, GOOD):
        one.hear(heard)
    assert worker.state is WorkerState.DOWN
    one.hear(GOOD)
    assert worker.state is WorkerState.READY


async def test_a_suspect_that_recovers_does_not_start_slowly_again(
    session: aiohttp.ClientSession,
) -> None:
    one, worker, _ = watch(session)
    one.hear(GOOD)
    worker.ready_since_s = 5.0
    one.hear(BAD)
    one.hear(GOOD)
    assert (worker.state, worker.ready_since_s) == (WorkerState.READY, 5.0)


async def test_a_start_that_nobody_noticed_is_told(session: aiohttp.ClientSession) -> None:
    one, worker, told = watch(session)
    one.hear(Heard(True, "it is ready", started_at=1.0))
    worker.ready_since_s = 5.0
    one.hear(Heard(True, "it is ready", started_at=1.0))
    assert told == [WorkerState.READY]
    one.hear(Heard(True, "it is ready", started_at=2.0))
    assert told == [WorkerState.READY, WorkerState.READY]
    assert (worker.state, worker.epoch) == (WorkerState.READY, 2)
    assert worker.ready_since_s > 5.0, "it starts slowly again"


@pytest.mark.parametrize("state", [WorkerState.DRAINING, WorkerState.HELD])
async def test_what_an_operator_decided_stays(
    session: aiohttp.ClientSession, state: WorkerState
) -> None:
    one, worker, told = watch(session)
    worker.become(state, "an operator said so")
    for heard in (GOOD, GOOD, SILENT, SILENT, SILENT):
        one.hear(heard)
    assert (worker.state, worker.why, told) == (state, "an operator said so", [])


async def test_faults_of_the_gateway_count_and_others_only_look(
    session: aiohttp.ClientSession,
) -> None:
    one, worker, _ = watch(session)
    one.hear(GOOD)
    one.fault("it broke off", is_certain=False)
    assert worker.state is WorkerState.READY
    for _ in range(3):
        one.fault("connection refused", is_certain=True)
    assert (worker.state, worker.why) == (WorkerState.DOWN, "connection refused")


async def test_a_silent_worker_is_cut_in_the_end_and_one_that_answers_is_not(
    session: aiohttp.ClientSession,
) -> None:
    one, worker, _ = watch(session, cut_after_s=0.05)
    cut: list[int] = []
    worker.cuts[object()] = lambda why: cut.append(1)
    one.hear(SILENT)
    assert not cut
    time.sleep(0.06)
    one.hear(BAD)
    assert not cut, "it answers, if only that it is not ready"
    time.sleep(0.06)
    one.hear(SILENT)
    assert cut


async def test_what_a_worker_says_is_learnt(
    scripted: Any, model_object: Any, eventually: Any, session: aiohttp.ClientSession
) -> None:
    made = model_object(
        "m",
        created=7,
        input_modalities=["text", "audio"],
        voices=["Anna"],
        capabilities={"speech": True, "tools": False, "voices": "many"},
    )
    text = 'omni_queue_depth 2\nomni_requests_admitted 3\nomni_requests_total{status="200"} 4\n'
    text += 'omni_requests_total{status="400"} 1\nomni_other 9\n'
    backend = await scripted(models=[made], metrics=text)
    one, worker, _ = watch(session, backend.url)
    task = asyncio.create_task(one.run())
    await eventually(lambda: worker.state is WorkerState.READY)
    [able] = worker.abilities
    assert able.inputs == {"text", "audio"}
    assert (able.voices, able.listed) == ({"anna"}, made)
    assert able.capabilities == {"speech"}
    assert able.known_capabilities == {"speech", "tools", "voices"}
    assert worker.reported == 5
    assert worker.said["omni_requests_total"] == 5
    assert "omni_other" not in worker.said
    assert worker.epoch == 1
    made["created"] = 8
    await eventually(lambda: worker.epoch == 2)
    assert backend.probes[0]["Authorization"] == "Bearer k"
    task.cancel()


@pytest.mark.parametrize(
    "models",
    [[{"id": 3}], [{}], ["m"], [{"id": "m", "created": "x"}], [{"id": "m", "voices": [3]}]],
)
async def test_a_list_of_models_that_makes_no_sense_is_a_failure(
    scripted: Any, eventually: Any, session: aiohttp.ClientSession, models: Any
) -> None:
    backend = await scripted(models=models)
    one, worker, _ = watch(session, backend.url)
    task = asyncio.create_task(one.run())
    await eventually(lambda: worker.state is WorkerState.DOWN)
    assert "makes no sense" in worker.why
    task.cancel()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff garbage\r\n\r\n")
    writer.close()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("behaviour", [garbage, silence, reset])
async def test_an_odd_worker_does_not_disturb_the_others(
    scripted: Any, routed: Any, behaviour: Any
) -> None:
    odd = await asyncio.start_server(behaviour, "127.0.0.1", 0)
    port = odd.sockets[0].getsockname()[1]
    good = await scripted()
    one = await routed(f"http://127.0.0.1:{port}", good, wait=False)
    await one.until(good.name, WorkerState.READY)
    await one.until(f"127.0.0.1:{port}", WorkerState.DOWN)
    for _ in range(5):
        status, told = await one.chat()
        assert (status, told["worker"]) == (200, good.name)
    odd.close()


async def test_workers_may_be_dead_at_the_start_and_come_later(scripted: Any, routed: Any) -> None:
    late = await scripted()
    port = int(late.url.rpartition(":")[2])
    await late.stop()
    one = await routed(late, wait=False)
    await one.until(late.name, WorkerState.DOWN)
    status, told = await one.chat()
    assert (status, told["error"]["code"]) == (503, "no_worker")
    async with one.client.get(f"{one.url}/ready") as reply:
        assert reply.status == 503
        assert await reply.json() == {"status": "unavailable", "waiting_for": [late.name]}
    await late.start(port)
    await one.until(late.name, WorkerState.READY)
    assert (await one.chat())[0] == 200


async def test_an_error_of_the_clients_says_nothing_of_the_worker(
    scripted: Any, routed: Any
) -> None:
    from aiohttp import web

    async def refuse(request: web.BaseRequest) -> web.Response:
        return web.json_response({"error": {"code": "invalid_value"}}, status=400)

    backend = await scripted(refuse)
    one = await routed(backend)
    for _ in range(10):
        assert (await one.chat())[0] == 400
    worker = one.router.fleet.get(backend.name)
    assert worker.state is WorkerState.READY
    assert b"omni_router_worker_faults_total{" not in one.router.metrics.render()
