"""Deadlines, cancelling and more requests than may be there, over HTTP on the echo pipeline."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caller import Heard, Manners, call
from target import Start, Target, until

SEEN_S = 20.0
RETRYABLE = {429: "rate_limit_exceeded", 503: "overloaded"}


@pytest.fixture(scope="module")
def target(start_echo: Start) -> Iterator[Target]:
    """A server with room for one request, and for one that waits."""
    server = start_echo("--max-in-flight", "1", "--max-queue", "1", "--request-timeout-s", "60")
    try:
        server.wait_ready()
        yield server
        until(lambda: server.counter("omni_aborts_pending") == 0, SEEN_S, "all is released")
    finally:
        server.close()


def asked(words: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}], **fields}


@asynccontextmanager
async def hanging(
    target: Target, *, request_id: str = "", running: bool = True, **fields: Any
) -> AsyncIterator[asyncio.Task[Heard]]:
    """A request that runs, or waits for its turn, until something ends it; its client leaves."""
    gauge = "omni_requests_admitted" if running else "omni_queue_depth"
    before = target.counter(gauge)
    body = asked("a hang", **fields)
    task = asyncio.create_task(call(target.url, body, request_id=request_id))
    try:
        await asyncio.to_thread(until, lambda: target.counter(gauge) > before, SEEN_S, gauge)
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(until, lambda: target.counter(gauge) == before, SEEN_S, "gone")


def cancel(target: Target, request_id: str, user: str = "") -> tuple[int, dict[str, Any]]:
    """Status and body of the answer."""
    url = f"{target.url}/v1/requests/{request_id}/cancel" + (f"?user={user}" if user else "")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_a_request(target: Target, stream: bool) -> None:
    heard = await call(target.url, asked("a hang", timeout=1.0, stream=stream))
    assert heard.error is not None
    assert heard.error["code"] == "deadline_exceeded"
    assert 1.0 <= heard.seconds < 6
    if stream:
        assert (heard.status, heard.text, heard.done) == (200, "a hang ", False)
        assert not heard.whole
    else:
        assert (heard.status, heard.error["type"]) == (504, "server_error")
        assert "retry-after" not in heard.headers


async def test_a_deadline_counts_the_wait(target: Target) -> None:
    async with hanging(target):
        heard = await call(target.url, asked("late", timeout=0.2, stream=True))
    assert heard.error is not None
    assert (heard.status, heard.error["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("running", [True, False])
async def test_a_request_is_cancelled_by_its_own_client_only(target: Target, running: bool) -> None:
    async def check() -> None:
        about = {"request_id": "mine/1", "user": "me", "running": running}
        async with hanging(target, **about) as task:
            for request_id, user in (("mine/1", ""), ("mine/1", "you"), ("mine", "me")):
                status, body = await asyncio.to_thread(cancel, target, request_id, user)
                assert (status, body["error"]["code"]) == (404, "request_not_found")
            status, body = await asyncio.to_thread(cancel, target, "mine/1", "me")
            assert (status, body["cancelled"]) == (200, 1)
            heard = await task
        assert heard.error is not None
        assert (heard.status, heard.error["code"]) == (499, "cancelled")
        assert heard.headers["x-request-id"] == "mine/1"

    if running:
        await check()
    else:
        async with hanging(target):
            await check()


@pytest.mark.parametrize(("user", "status"), [("one", 429), ("two", 503)])
async def test_what_finds_no_place_is_refused_at_once(
    target: Target, user: str, status: int
) -> None:
    before = target.counter("omni_requests_refused_total")
    async with hanging(target, user="one"), hanging(target, user="one", running=False):
        heard = await call(target.url, asked("no", user=user, stream=True), Manners(patience_s=5))
    assert heard.error is not None
    assert (heard.status, heard.error["code"]) == (status, RETRYABLE[status])
    assert int(heard.headers["retry-after"]) >= 1
    assert target.counter("omni_requests_refused_total") == before + 1


async def test_who_leaves_the_queue_makes_room(target: Target) -> None:
    async with hanging(target):
        async with hanging(target, running=False):
            pass
        async with hanging(target, running=False) as waiting:
            assert not waiting.done()


async def test_who_waits_is_served(target: Target) -> None:
    async with hanging(target):
        waiting = asyncio.create_task(call(target.url, asked("at last")))
        depth = "omni_queue_depth"
        await asyncio.to_thread(until, lambda: target.counter(depth) == 1, SEEN_S, depth)
    heard = await waiting
    assert (heard.status, heard.text) == (200, "at last ")


async def test_times_of_an_abort_are_told_apart(target: Target) -> None:
    names = [f"omni_abort_{name}_seconds_count" for name in ("client_gone", "sent", "released")]
    until(lambda: target.counter("omni_aborts_pending") == 0, SEEN_S, "earlier ones are over")
    before = [target.counter(name) for name in names]
    async with hanging(target):
        pass

    def told() -> bool:
        after = [target.counter(name) for name in names]
        return [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 2]

    until(told, SEEN_S, "one client gone, one abort sent, released by intake and writer")
