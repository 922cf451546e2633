"""Updates of weights: who has which, and who serves, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from weighted import FakeWorker, all_ready, listening, routing, serving, states, until

from omni_router.errors import ConfigError, ConflictError
from omni_router.journal import Journal
from omni_router.settings import WorkerSpec
from omni_router.weight_calls import ResolveBody, WeightsBody
from omni_router.worker import WorkerState

NEW = WeightsBody(path="/new", revision="r2", wait_s=5)
HELD, READY = WorkerState.HELD, WorkerState.READY
DIES = str(Path(__file__).with_name("dies_updating.py"))
WRITES = 6
"""Of an update of two workers: its begin, two for each, and its end."""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "weights.json"


async def test_all_workers_load_them(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        update = await weights.update(NEW)
        assert update.outcome == "complete"
        await all_ready(router)
        assert weights.told()["held"] == {}
        assert weights.told()["served"] == "/new"
    assert one.bodies == two.bodies == [{"path": "/new", "revision": "r2", "wait_s": 5}]
    book = Journal(journal).book
    assert book.open is None
    assert book.served is not None
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    assert len(list(journal.parent.iterdir())) == 2, "it and its lock"


async def test_one_is_held_while_it_loads(journal: Path) -> None:
    one, two = FakeWorker("one", answer="wait"), FakeWorker("two")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        updating = asyncio.create_task(weights.update(NEW))
        await one.asked.wait()
        assert states(router) == {"one": HELD, "two": READY}
        with pytest.raises(ConflictError, match="under way"):
            await weights.update(NEW)
        updating.cancel()  # a client that leaves
        one.let_go.set()
        await until(lambda: weights.told()["update"]["outcome"] == "complete")
        await all_ready(router)


async def test_a_path_that_is_wrong_costs_nothing(journal: Path) -> None:
    one, two = FakeWorker("one", answer="refuse"), FakeWorker("two")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        assert (await weights.update(NEW)).outcome == "kept"
        await all_ready(router)
        assert two.bodies == []
        one.answer = "load"
        assert (await weights.update(NEW)).outcome == "complete"


async def test_who_keeps_the_old_ones_is_held(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two", answer="refuse")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        assert (await weights.update(NEW)).outcome == "partial"
        await until(lambda: states(router) == {"one": READY, "two": HELD})
        assert "checkpoint_not_found" in router.fleet.get("two").why
        with pytest.raises(ConflictError, match="not resolved"):
            await weights.update(NEW)
        two.answer = "load"
        assert (await weights.resolve(ResolveBody(action="retry"))).outcome == "complete"
        await all_ready(router)
        assert len(one.bodies) == 1, "who has them is not asked again"


async def test_whoever_may_have_them_is_held_until_somebody_says(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two", answer="break off")
    async with listening(one, two):
        async with routing(one, two, journal=journal) as (router, weights):
            assert (await weights.update(NEW)).outcome == "running"
            await until(lambda: states(router) == {"one": READY, "two": HELD})
        async with routing(one, two, journal=journal) as (router, weights):
            assert states(router) == {"one": READY, "two": HELD}, "after a restart as well"
            await weights.resolve(ResolveBody(action="accept", worker="two"))
            await all_ready(router)


async def test_who_starts_again_gets_them_before_it_serves(journal: Path) -> None:
    one = FakeWorker("one")
    async with listening(one), routing(one, journal=journal) as (router, weights):
        await weights.update(NEW)
        await all_ready(router)
        one.start_again()
        one.answer = "wait"
        one.asked.clear()
        await one.asked.wait()
        assert states(router) == {"one": HELD}
        one.let_go.set()
        await all_ready(router)
        assert one.serves == "/new"


async def test_who_comes_later_gets_them_before_it_serves(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two", answer="wait")
    async with listening(one, two), routing(one, journal=journal) as (router, weights):
        await weights.update(NEW)
        router.add(WorkerSpec(url=two.url, name="two"))
        await two.asked.wait()
        assert states(router)["two"] is HELD
        two.let_go.set()
        await all_ready(router)


@pytest.mark.parametrize("answer", ["load and fail", "nonsense"])
async def test_an_answer_that_says_nothing_is_no_answer(journal: Path, answer: str) -> None:
    one, two = FakeWorker("one", answer=answer), FakeWorker("two")  # type: ignore[arg-type]
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        await weights.update(NEW)
        await until(lambda: states(router) == {"one": HELD, "two": READY})
        assert serving(router, one, two) == {"/new"}
        one.answer = "load"
        assert (await weights.resolve(ResolveBody(action="retry"))).outcome == "complete"
        await all_ready(router)
        assert serving(router, one, two) == {"/new"}


async def test_what_was_served_before_a_refused_update_is_served_after_it(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        await weights.update(NEW)
        one.answer = "refuse"
        assert (await weights.update(WeightsBody(path="/typo"))).outcome == "kept"
        await all_ready(router)
        one.answer = "load"
        one.start_again()
        await until(lambda: one.serves == "/new")
        await all_ready(router)
        assert serving(router, one, two) == {"/new"}


async def test_who_is_drained_stays_so(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        router.drain("two")
        assert (await weights.update(NEW)).outcome == "complete"
        await until(lambda: states(router) == {"one": READY, "two": WorkerState.DRAINING})


async def test_who_is_gone_holds_nothing_up(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two", answer="break off")
    async with listening(one, two), routing(one, two, journal=journal) as (router, weights):
        await weights.update(NEW)
        await router.remove("two", wait_s=0)
        assert (await weights.resolve(ResolveBody(action="retry"))).outcome == "complete"
        assert (await weights.update(WeightsBody(path="/newer"))).outcome == "complete"


async def test_who_cannot_be_reached_has_not_been_sent_anything(journal: Path) -> None:
    one, two = FakeWorker("one"), FakeWorker("two")
    async with listening(one), routing(one, journal=journal) as (router, weights):
        router.add(WorkerSpec(url="http://127.0.0.1:9", name="two"))
        update = await weights.update(NEW)
        assert update.workers["two"].step == "pending"
        async with listening(two):
            await router.remove("two", wait_s=0)
            router.add(WorkerSpec(url=two.url, name="two"))
            await until(lambda: two.serves == "/new")
            await all_ready(router)
        assert weights.told()["update"]["outcome"] == "complete"


async def test_two_at_once_are_one(journal: Path) -> None:
    one = FakeWorker("one")
    async with listening(one), routing(one, journal=journal) as (_, weights):
        both = await asyncio.gather(
            weights.update(NEW), weights.update(NEW), return_exceptions=True
        )
        assert sum(isinstance(result, ConflictError) for result in both) == 1


@pytest.mark.parametrize("where", ["before", "middle", "after"])
@pytest.mark.parametrize("count", range(1, WRITES + 1))
async def test_nobody_serves_with_unknown_weights_after_a_kill(
    journal: Path, where: str, count: int
) -> None:
    one, two = FakeWorker("one"), FakeWorker("two")
    async with listening(one, two):
        named = [f"{worker.name}={worker.url}" for worker in (one, two)]
        command = (sys.executable, DIES, str(journal), where, str(count), *named)
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == -signal.SIGKILL
        async with routing(one, two, journal=journal) as (router, weights):
            assert len(serving(router, one, two)) <= 1, "never two at once"
            if weights.told()["update"] is None:
                assert one.bodies == two.bodies == [], "the journal knows first"
                return
            with suppress(ConflictError):  # what was never sent is sent by itself
                await weights.resolve(ResolveBody(action="retry"))
            await all_ready(router)
            assert serving(router, one, two) == {"/new"}


async def test_a_kill_while_a_worker_loads(journal: Path) -> None:
    one = FakeWorker("one", answer="wait")
    async with listening(one):
        command = (sys.executable, DIES, str(journal), "never", "0", f"one={one.url}")
        process = await asyncio.create_subprocess_exec(*command)
        await one.asked.wait()
        process.kill()
        await process.wait()
        async with routing(one, journal=journal) as (router, _):
            assert states(router) == {"one": HELD}
            assert "/router/v1/weights/resolve" in router.fleet.get("one").why


@pytest.mark.parametrize("content", ["", "{", '{"version": 1, "open": 3}', '{"version": 9}'])
def test_a_journal_that_says_nothing_stops_the_router(journal: Path, content: str) -> None:
    journal.write_text(content)
    with pytest.raises(ConfigError, match="journal"):
        Journal(journal)


def test_a_journal_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        Journal(tmp_path / "nowhere" / "weights.json")


def test_a_journal_is_of_one_router(journal: Path) -> None:
    first = Journal(journal)
    with pytest.raises(ConfigError, match="another router"):
        Journal(journal)
    first.close()
    Journal(journal).close()
