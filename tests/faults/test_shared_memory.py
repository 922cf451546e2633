"""Shared memory that is full, overwritten or cut: requests may fail, the pipeline stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from caller import Heard, Manners, call
from inject import scribble, stopped, truncate
from target import Start, Target, until

BIG_BYTES = 4 * 2**20
"""What a request that says "big" has intake send to the writer."""
POOL_MIB = 16
PLACED = 3
"""Of those that ask at once; there is room for that many and not for all."""
LOANS_OFFSET = 64
LOANS_BYTES = POOL_MIB * 16 * 8
"""Where a pool's file says which loan lies in which of its slots."""
READY_S = 30.0
RELEASED_S = 10.0
PATIENT = Manners(patience_s=60)


@pytest.fixture(scope="module")
def target(start_echo: Start) -> Iterator[Target]:
    """Its stages have processes of their own; intake has a small pool."""
    server = start_echo("--layout", "per-stage", "--intake.env.OMNI_SHM_POOL_MIB", str(POOL_MIB))
    try:
        server.wait_ready()
        asyncio.run(say(server, "big"))  # the file of a pool is there from the first loan on
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def mended(target: Target) -> Iterator[None]:
    """Afterwards everything is ready, and large tensors pass."""
    yield

    def passes() -> bool:
        ready = target.health()["status"] == "ready"
        return ready and asyncio.run(say(target, "big after all")).text == "big after all "

    until(passes, READY_S, "all is ready, and large tensors pass")


async def say(target: Target, words: str) -> Heard:
    body = {"messages": [{"role": "user", "content": words}]}
    return await call(target.url, body, PATIENT)


def pool_of(target: Target, process: str) -> Path:
    """The file that a process lends from."""
    pid = target.processes()[process]
    return target.run_dir / "segments" / f"{process}@{pid}"


def check_refused(heard: Heard, *codes: str) -> None:
    """It failed, and may be tried again."""
    assert heard.error is not None
    assert heard.status == 503
    assert heard.error["code"] in codes
    assert "retry-after" in heard.headers


async def say_big(target: Target) -> asyncio.Task[Heard]:
    """A request whose big tensor lies in the pool, since the pool's file says so."""
    file = pool_of(target, "intake")
    before = loans_in(file)
    asked = asyncio.create_task(say(target, "big"))
    await asyncio.to_thread(until, lambda: loans_in(file) != before, 5, "the tensor is placed")
    return asked


def loans_in(file: Path) -> bytes:
    return file.read_bytes()[LOANS_OFFSET : LOANS_OFFSET + LOANS_BYTES]


async def test_a_full_pool_fails_who_waits_too_long(target: Target) -> None:
    with stopped(target.processes()["writer"]):
        asked = [asyncio.create_task(say(target, f"big {n}")) for n in range(PLACED + 4)]
        first, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for task in first:
            check_refused(await task, "relay_full")
        assert (await say(target, "fail:intake")).status == 400  # who sends nothing waits for none
    heard = await asyncio.gather(*asked)
    answered = [reply for reply in heard if reply.status == 200]
    assert len(answered) >= PLACED
    for reply in heard:
        if reply.status != 200:
            check_refused(reply, "relay_full")
    await say(target, "small")  # a loop holds its last piece of work until the next
    until(lambda: target.counter("omni_relay_slots_used") == 0, RELEASED_S, "the pool is empty")


async def test_an_overwritten_pool_fails_what_lies_in_it(target: Target) -> None:
    with stopped(target.processes()["writer"]):
        asked = await say_big(target)
        scribble(pool_of(target, "intake"), LOANS_OFFSET, LOANS_BYTES)
    heard = await asked
    assert heard.error is not None
    assert (heard.status, heard.error["code"]) == (500, "protocol")
    assert (await say(target, "small")).text == "small "
    assert target.health()["stages"]["writer"]["restarts"] == 0


async def test_a_truncated_pool_costs_its_processes_at_most(target: Target) -> None:
    """Who reads what is no longer there gets SIGBUS."""
    with stopped(target.processes()["writer"]):
        asked = await say_big(target)
        truncate(pool_of(target, "intake"))
    check_refused(await asked, "stage_died")
