"""Processes that die: who is told, how fast, and that they come back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from omni_core.addresses import segments
from omni_core.coordinator import backoff as backoff_module
from omni_core.coordinator import supervisor, warm_up
from omni_core.coordinator.active import Active
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.health import Health, ReplicaHealth
from omni_core.coordinator.runtime import Runtime
from omni_core.errors import ErrorInfo, NotReadyError, OutOfMemoryError, StageDiedError
from omni_core.messages import Crash, Ready, StreamDone, ToCoordinator
from omni_core.pipeline import Pipeline
from omni_core.testing import echo
from omni_core.types import Finished, Message, Modality, Request, RequestParams, TextPart

NOTICED_S = 2.0
"""On a machine with other work; what is promised of one without is measured in tests/faults."""
BACK_S = 20.0


def load(path: Path, *, watchdog_timeout_s: float = 30, **overrides: str) -> Pipeline:
    return Pipeline.load(
        echo.write_checkpoint(path),
        plugins=echo.plugins(),
        device="cpu",
        overrides={name.replace("__", "."): value for name, value in overrides.items()},
        watchdog_timeout_s=watchdog_timeout_s,
    )


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[Pipeline]:
    async with load(tmp_path) as running:
        yield running


def runtime_of(pipeline: Pipeline) -> Runtime:
    assert pipeline._runtime is not None
    return pipeline._runtime


async def ask(pipeline: Pipeline, text: str, *modalities: Modality) -> Finished:
    """The end of a reply, or its error."""
    message = Message(role="user", content=(TextPart(text=text),))
    params = RequestParams(modalities=modalities or ("text",))
    events = [e async for e in pipeline.generate(Request(messages=(message,), params=params))]
    assert isinstance(events[-1], Finished)
    return events[-1]


async def hang(pipeline: Pipeline, *modalities: Modality) -> asyncio.Task[Finished]:
    """A request that the writer holds."""
    before = (await pipeline.stats())["writer"]["running"]
    asking = asyncio.create_task(ask(pipeline, "hang", *modalities))
    while (await pipeline.stats())["writer"]["running"] == before:
        assert not asking.done(), asking
    return asking


async def until(pipeline: Pipeline, good: Callable[[Health], bool], within_s: float) -> Health:
    deadline = time.monotonic() + within_s
    while not good(health := pipeline.health()):
        assert time.monotonic() < deadline, health
        await asyncio.sleep(0.005)
    return health


def is_ready(health: Health) -> bool:
    return health.status == "ready"


async def test_a_killed_process_takes_its_requests_along_and_comes_back(pipeline: Pipeline) -> None:
    before = pipeline.health().stages
    spoken = await hang(pipeline, "text", "audio")
    written = await hang(pipeline, "text")
    killed_s = time.monotonic()
    os.kill(before["voice"].pid, signal.SIGKILL)
    with pytest.raises(StageDiedError, match=r"'voice' ended while.*exit code -9") as caught:
        await spoken
    assert time.monotonic() - killed_s < NOTICED_S
    assert (caught.value.status, caught.value.retryable) == (503, True)
    health = pipeline.health()
    assert (health.status, health.stages["voice"].state) == ("degraded", "dead")
    with pytest.raises(NotReadyError, match="not ready: voice"):
        await ask(pipeline, "a", "audio")
    await ask(pipeline, "text goes on")
    after = (await until(pipeline, is_ready, BACK_S)).stages
    assert (after["voice"].restarts, after["voice"].last_death) == (1, "exit")
    assert after["voice"].pid not in (0, before["voice"].pid)
    assert after["writer"] == before["writer"]
    assert not written.done()
    written.cancel()
    await ask(pipeline, "a b", "text", "audio")
    assert (await pipeline.stats())["voice"]["requests"] == 2, "the warm-up and ours"


async def test_a_crash_is_told_with_its_cause_and_mended(pipeline: Pipeline) -> None:
    with pytest.raises(StageDiedError, match="writer: RuntimeError: asked to crash"):
        await ask(pipeline, "crash:writer")
    health = await until(pipeline, is_ready, BACK_S)
    assert [health.stages[name].restarts for name in ("intake", "writer", "voice")] == [1, 1, 0]
    assert health.stages["writer"].last_death == "crash"
    assert health.stages["voice"].last_death is msgspec.UNSET
    await ask(pipeline, "a b", "text", "audio")


async def test_all_processes_may_die_at_once(pipeline: Pipeline) -> None:
    pids = {stage.pid for stage in pipeline.health().stages.values()}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await until(pipeline, lambda health: health.status == "degraded", NOTICED_S)
    health = await until(pipeline, is_ready, BACK_S)
    assert {stage.restarts for stage in health.stages.values()} == {1}
    await ask(pipeline, "big a", "text", "audio")
    left = [path.name for path in segments(runtime_of(pipeline).run_dir).iterdir()]
    assert left
    assert not any(name.endswith(f"@{pid}") for name in left for pid in pids)


async def test_what_a_killed_process_makes_until_its_end_goes_with_it(pipeline: Pipeline) -> None:
    runtime = runtime_of(pipeline)
    voice = runtime._fleet.find("voice")
    assert voice is not None
    runtime._supervisor._end_process(voice, "hang", "as if")
    late = segments(runtime.run_dir) / f"voice@{2**62}"
    late.touch()
    await until(pipeline, is_ready, BACK_S)
    assert not late.exists()


async def test_a_death_does_not_hold_up_those_who_ask_for_counters_or_stacks(
    pipeline: Pipeline,
) -> None:
    voice = pipeline.health().stages["voice"].pid
    os.kill(voice, signal.SIGSTOP)
    asked_s = time.monotonic()
    asking = asyncio.create_task(pipeline.stats())
    looking = asyncio.create_task(pipeline.profile("voice", 60.0))
    await asyncio.sleep(0)
    os.kill(voice, signal.SIGKILL)
    assert set(await asking) == {"intake", "writer"}
    assert await asyncio.wait_for(looking, 1) == {}
    assert time.monotonic() - asked_s < 1


async def test_late_news_of_the_dead_changes_nothing(pipeline: Pipeline) -> None:
    os.kill(pipeline.health().stages["voice"].pid, signal.SIGKILL)
    await until(pipeline, lambda health: health.status == "degraded", NOTICED_S)
    error = ErrorInfo(kind="StageError", message="long ago")
    receive = runtime_of(pipeline)._dispatch
    late: list[ToCoordinator] = [
        Ready(process="voice", stage="voice"),
        Crash(process="voice", stage="voice", error=error),
    ]
    for message in late:
        receive(message)
    assert pipeline.health().stages["voice"].state == "dead"
    await until(pipeline, is_ready, BACK_S)
    for message in late:
        receive(message)
    assert pipeline.health().status == "ready"


async def test_nothing_for_the_dead_reaches_its_successor(pipeline: Pipeline) -> None:
    """Not even what was queued before anybody knew."""
    links = runtime_of(pipeline)._links
    stray = StreamDone(request_id="stray", source="writer", target="voice")
    voice = pipeline.health().stages["voice"].pid
    os.kill(voice, signal.SIGSTOP)
    for _ in range(50):
        links.send("voice", stray)
    os.kill(voice, signal.SIGKILL)
    await until(pipeline, lambda health: health.status == "degraded", NOTICED_S)
    links.send("voice", stray)
    await until(pipeline, is_ready, BACK_S)
    await ask(pipeline, "a", "audio")
    assert (await pipeline.stats())["voice"]["late"] == 0
    links.send("voice@1", stray)
    assert (await pipeline.stats())["voice"]["late"] == 1


async def test_a_process_that_keeps_dying_ends_the_pipeline_with_the_cause(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff_module, "DEATHS", 2)
    ending = asyncio.create_task(pipeline.failed())
    with pytest.raises(StageDiedError):
        await ask(pipeline, "die:writer")
    await until(pipeline, is_ready, BACK_S)
    written = await hang(pipeline)
    with pytest.raises(StageDiedError):
        await ask(pipeline, "crash:writer")
    with pytest.raises(StageDiedError):
        await written
    error = await asyncio.wait_for(ending, BACK_S)
    assert "'front@1' ended with code 1" in error.message
    assert error.message.endswith("RuntimeError: asked to crash")
    with pytest.raises(StageDiedError, match="ended with code 1"):
        await ask(pipeline, "too late")


async def test_a_successor_that_fails_its_warm_up_is_started_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_WARM_UP_TEXT", "fail:writer")
    os.kill(pipeline.health().stages["voice"].pid, signal.SIGKILL)
    await until(pipeline, lambda health: health.stages["voice"].restarts == 2, BACK_S)
    assert pipeline.health().status == "degraded"
    monkeypatch.undo()
    await until(pipeline, is_ready, BACK_S)
    await ask(pipeline, "a", "audio")


async def test_a_warm_up_that_may_succeed_later_is_repeated(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    submit = Coordinator.submit

    def refuse_once(self: Coordinator, request: Request, *, warm_up: bool = False) -> Active:
        if warm_up and not refused:
            refused.append(request)
            raise OutOfMemoryError("no room just now")
        return submit(self, request, warm_up=warm_up)

    monkeypatch.setattr(Coordinator, "submit", refuse_once)
    monkeypatch.setattr(supervisor, "_WARM_UP_PAUSE_S", 0.0)
    os.kill(pipeline.health().stages["voice"].pid, signal.SIGKILL)
    await until(pipeline, lambda health: health.stages["voice"].restarts == 1, BACK_S)
    await until(pipeline, is_ready, BACK_S)
    assert refused
    assert pipeline.health().stages["voice"].restarts == 1


async def test_a_warm_up_that_waits_for_new_weights_says_so_once_and_is_no_error(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "omni.runtime")
    monkeypatch.setattr(supervisor, "_WARM_UP_PAUSE_S", 0.01)
    coordinator = runtime_of(pipeline).coordinator

    def told() -> list[tuple[int, str]]:
        found = [(record.levelno, record.message) for record in caplog.records]
        return [(level, text) for level, text in found if "warm-up" in text]

    coordinator.hold()
    os.kill(pipeline.health().stages["voice"].pid, signal.SIGKILL)
    await until(pipeline, lambda _: bool(told()), BACK_S)
    await asyncio.sleep(0.2)  # twenty tries
    coordinator.go_on()
    await until(pipeline, is_ready, BACK_S)
    waits = "the warm-up request waits: new weights are being loaded; retry in a moment"
    assert told() == [(logging.INFO, waits)]


async def test_a_successor_that_says_nothing_is_given_up(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_STALL_S", 0.0)
    os.kill(pipeline.health().stages["voice"].pid, signal.SIGKILL)
    await until(pipeline, lambda health: health.stages["voice"].restarts == 2, BACK_S)
    monkeypatch.undo()
    await until(pipeline, is_ready, BACK_S)


async def test_a_dead_replica_is_drained_and_the_others_go_on(tmp_path: Path) -> None:
    async with load(tmp_path, voice__replicas="2") as pipeline:
        voice = pipeline.health().stages["voice"]
        assert voice.replicas != msgspec.UNSET
        assert set(voice.replicas) == {"voice", "voice.1"}
        assert len({health.pid for health in voice.replicas.values()}) == 2
        lost, kept = [await hang(pipeline, "text", "audio") for _ in range(2)]
        stats = await pipeline.stats()
        assert (stats["voice"]["held"], stats["voice.1"]["held"]) == (1, 1)
        os.kill(voice.replicas["voice"].pid, signal.SIGKILL)
        with pytest.raises(StageDiedError):
            await lost
        health = pipeline.health()
        assert (health.status, health.stages["voice"].state) == ("degraded", "ready")
        assert health.stages["voice"].pid == voice.replicas["voice.1"].pid
        for _ in range(3):
            await ask(pipeline, "a b", "text", "audio")
        assert (await pipeline.stats())["voice.1"]["requests"] == 5, "warm-up, kept and three"
        assert not kept.done()
        after = (await until(pipeline, is_ready, BACK_S)).stages["voice"]
        assert after.replicas["voice"].restarts == after.restarts == 1
        kept.cancel()
        await asyncio.wait([kept])
        for _ in range(4):
            await ask(pipeline, "a b", "text", "audio")
        stats = await pipeline.stats()
        assert (stats["voice"]["requests"], stats["voice.1"]["requests"]) == (3, 7)


async def test_a_replica_that_keeps_dying_is_done_without_while_another_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff_module, "DEATHS", 2)
    async with load(tmp_path, voice__replicas="2") as pipeline:

        def replica(health: Health) -> ReplicaHealth:
            assert health.stages["voice"].replicas != msgspec.UNSET
            return health.stages["voice"].replicas["voice"]

        ending = asyncio.create_task(pipeline.failed())
        os.kill(replica(pipeline.health()).pid, signal.SIGKILL)
        await until(pipeline, lambda health: replica(health).restarts == 1, BACK_S)
        os.kill(replica(await until(pipeline, is_ready, BACK_S)).pid, signal.SIGKILL)
        await until(pipeline, lambda health: replica(health).last_death == "crash_loop", BACK_S)
        health = pipeline.health()
        assert (health.status, replica(health).state) == ("degraded", "dead")
        assert health.stages["voice"].state == "ready"
        await ask(pipeline, "a b", "text", "audio")
        assert not ending.done()
        os.kill(health.stages["voice"].pid, signal.SIGKILL)
        await until(pipeline, lambda health: health.stages["voice"].restarts == 2, BACK_S)
        os.kill(
            (await until(pipeline, lambda h: h.stages["voice"].state == "ready", BACK_S))
            .stages["voice"]
            .pid,
            signal.SIGKILL,
        )
        error = await asyncio.wait_for(ending, BACK_S)
        assert "'voice.1@1' ended" in error.message, "nobody is left to go on"


async def test_a_process_stuck_in_native_code_is_replaced(tmp_path: Path) -> None:
    """In code that keeps the interpreter, so that no thread of the process can do anything."""
    async with load(tmp_path, watchdog_timeout_s=3.0) as pipeline:
        with pytest.raises(StageDiedError, match="does not answer") as caught:
            await asyncio.wait_for(ask(pipeline, "seize"), BACK_S)
        assert caught.value.retryable
        assert pipeline.health().stages["writer"].last_death == "hang"
        await until(pipeline, is_ready, BACK_S)
        await ask(pipeline, "a b", "text", "audio")


async def test_a_process_that_only_computes_is_not_taken_to_hang(tmp_path: Path) -> None:
    async with load(tmp_path, watchdog_timeout_s=2.0) as pipeline:
        await ask(pipeline, "busy", "text", "audio")
        assert pipeline.health().stages["writer"].restarts == 0


async def test_a_group_is_replicated_as_a_whole(tmp_path: Path) -> None:
    overrides = {"intake__replicas": "2", "writer__replicas": "2", "voice__replicas": "2"}
    async with load(tmp_path, **overrides) as pipeline:
        replies = await asyncio.gather(
            *(ask(pipeline, f"big {'a ' * n}", "text", "audio") for n in range(12))
        )
        assert [reply.usage.text_tokens for reply in replies] == [n + 1 for n in range(12)]
        stats = await pipeline.stats()
        for stage in ("intake", "writer", "voice"):
            assert stats[stage]["requests"] == stats[f"{stage}.1"]["requests"] == 7


OWNER = """
import asyncio, dataclasses, sys
from pathlib import Path
from omni_core.coordinator.runtime import Runtime
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref
from omni_core.testing import echo

path = Path(sys.argv[1])

def told(stage, text):
    if (stage, text) == ("voice", "loading"):
        pids = {stage.pid for stage in runtime.health().stages.values()}
        print(runtime.run_dir, runtime._run.janitor._child.pid, *pids, flush=True)

pipeline = Pipeline.load(echo.write_checkpoint(path), plugins=echo.plugins(), device="cpu")
stuck = {"factory": Ref("stuck:build"), "env": {"PYTHONPATH": str(path)}}
stages = tuple(
    dataclasses.replace(stage, **stuck) if stage.name == "voice" else stage
    for stage in pipeline._plan.stages
)
runtime = Runtime(dataclasses.replace(pipeline._plan, stages=stages), told)
asyncio.run(runtime.start())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_parent_that_is_killed_while_a_child_is_deep_in_a_factory(
    tmp_path: Path, number: int
) -> None:
    """In one that holds the interpreter, so that no thread of the child can notice anything."""
    (tmp_path / "stuck.py").write_text("import re\ndef build(ctx): re.match('(a*)*b', 'a' * 60)\n")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        run_dir, *printed = owner.stdout.readline().split()
        pids = [int(pid) for pid in printed]
        assert len(pids) == 3
        owner.send_signal(number)
        owner.wait()
        deadline = time.monotonic() + BACK_S
        while any(Path(f"/proc/{pid}").exists() for pid in pids) or Path(run_dir).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)


async def test_a_log_level_reaches_processes_that_come_later(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "omni.stage")
    pipeline.set_log_level("INFO")
    os.kill(pipeline.health().stages["voice"].pid, signal.SIGKILL)
    await until(pipeline, lambda health: health.status == "degraded", NOTICED_S)
    await until(pipeline, is_ready, BACK_S)
    deadline_s = time.monotonic() + BACK_S
    for process in ("front", "voice@1"):
        while f"[{process}] INFO omni.stage: logging from INFO on" not in caplog.text:
            assert time.monotonic() < deadline_s, caplog.text
            await asyncio.sleep(0.01)
