"""What a running pipeline must survive, and what it must not cost."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from omni_core.addresses import COORDINATOR, address
from omni_core.codec import batch
from omni_core.config import Layout
from omni_core.coordinator import runtime as runtime_module
from omni_core.coordinator import warm_up
from omni_core.coordinator.launcher import Child
from omni_core.coordinator.runtime import Runtime
from omni_core.errors import NotReadyError, ProtocolError, StageError
from omni_core.messages import DataReady, Emit, Hello, StreamDone
from omni_core.pipeline import Pipeline
from omni_core.relay import shm
from omni_core.specs import Ref, StageConfig
from omni_core.testing import echo
from omni_core.types import (
    AudioDelta,
    Message,
    Request,
    RequestParams,
    TextDelta,
    TextPart,
)

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE_SHARE = 0.01
IDLE_S = 3.0
GIVEN_UP_S = 2.0


def load(path: Path, layout: Layout = "auto") -> Pipeline:
    model = echo.write_checkpoint(path)
    return Pipeline.load(model, plugins=echo.plugins(), device="cpu", layout=layout)


def ask(text: str) -> Request:
    message = Message(role="user", content=(TextPart(text=text),))
    return Request(
        messages=(message,), params=RequestParams(modalities=("text", "audio")), request_id="asked"
    )


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[Pipeline]:
    async with load(tmp_path) as running:
        yield running


def runtime_of(pipeline: Pipeline) -> Runtime:
    assert pipeline._runtime is not None
    return pipeline._runtime


@contextmanager
def socket_to(pipeline: Pipeline, process: str) -> Iterator[zmq.Socket[bytes]]:
    """A line into a process of the pipeline, as a stranger would open it."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as line:
        line.connect(address(runtime_of(pipeline).run_dir, process))
        yield line
        line.close(linger=5000)


async def words_of(pipeline: Pipeline, text: str) -> str:
    return "".join([e.text async for e in pipeline.generate(ask(text)) if isinstance(e, TextDelta)])


GARBAGE = [
    [b""],
    [b"\xc1"],
    [b"\x91" * 10_000],
    [msgspec.msgpack.encode([{"type": "Setup", "version": "x"}])],
    [b"a", b"b", b"c"],
]
EARS = [COORDINATOR, "front", "voice"]


async def test_garbage_on_any_socket_costs_nothing(pipeline: Pipeline) -> None:
    encode = msgspec.msgpack.encode
    strange = [
        Hello(version=1, process="stranger", pid=1),
        StreamDone(request_id="nobody", source="x", target="nowhere"),
        DataReady(request_id="r", source="x", target="no", params=RequestParams(), payload={}),
    ]
    for process in EARS:
        with socket_to(pipeline, process) as line:
            for frames in [*GARBAGE, *([batch([encode(message)])] for message in strange)]:
                line.send_multipart(frames)
    assert await words_of(pipeline, "still here") == "still here "
    assert pipeline.health().status == "ready"


async def test_an_unreadable_event_fails_its_own_request(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    stream = pipeline.generate(ask("hang"))
    await anext(stream)
    [request_id] = runtime_of(pipeline).coordinator._active
    event = AudioDelta(samples=np.zeros(0, np.float32), sample_rate=1)
    lost = msgspec.structs.replace(event, samples=msgspec.msgpack.Ext(1, b"?"))
    with socket_to(pipeline, COORDINATOR) as line:
        frame = msgspec.msgpack.encode(Emit(request_id=request_id, stage="voice", event=lost))
        line.send(batch([frame]))
    with pytest.raises(ProtocolError, match="undecodable"), caplog.at_level(logging.CRITICAL):
        async for _ in stream:
            pass
    assert await words_of(pipeline, "others go on") == "others go on "


async def leave_after(pipeline: Pipeline, text: str, events: int) -> None:
    stream = pipeline.generate(ask(text))
    async for _ in stream:
        events -= 1
        if events <= 0:
            break
    await stream.aclose()


async def is_busy(pipeline: Pipeline) -> bool:
    """Whether a stage or shared memory still holds anything of any request."""
    stages = (await pipeline.stats()).values()
    lent = any(relay["slots_used"] for relay in (await pipeline.relay_stats()).values())
    return lent or any(stage["held"] or stage["running"] for stage in stages)


@pytest.mark.parametrize("layout", ["auto", "per-stage"])
async def test_a_storm_of_clients_that_leave_holds_nothing(tmp_path: Path, layout: str) -> None:
    texts = ["a b c d e f g h", "a hang b", "big a b", "hang", "a"]
    async with load(tmp_path, layout=layout) as pipeline:
        await asyncio.gather(
            *(leave_after(pipeline, texts[n % 5], n % 4 if n % 5 != 3 else 1) for n in range(120))
        )
        assert runtime_of(pipeline).coordinator.in_flight == 0
        deadline = time.monotonic() + 5
        while await is_busy(pipeline):
            assert time.monotonic() < deadline, await pipeline.stats()
        assert await words_of(pipeline, "and on") == "and on "


async def test_a_reply_nobody_asked_for_is_never_submitted(pipeline: Pipeline) -> None:
    stream = pipeline.generate(ask("never"))
    await stream.aclose()
    assert runtime_of(pipeline).coordinator.in_flight == 0
    assert (await pipeline.stats())["intake"]["requests"] == 1  # the warm-up


async def test_cancelling_the_reader_aborts_the_request(pipeline: Pipeline) -> None:
    reading = asyncio.create_task(words_of(pipeline, "hang"))
    while not runtime_of(pipeline).coordinator.in_flight:
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert runtime_of(pipeline).coordinator.in_flight == 0


def cpu_s(pid: int) -> float:
    """User and system time of a process and its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def test_an_idle_pipeline_sleeps(pipeline: Pipeline) -> None:
    """The one test that waits on purpose: idleness has no event to wait for."""
    pids = {health.pid for health in pipeline.health().stages.values()} | {os.getpid()}
    await words_of(pipeline, "warm")
    before = {pid: cpu_s(pid) for pid in pids}
    await asyncio.sleep(IDLE_S)
    for pid, started in before.items():
        assert cpu_s(pid) - started <= IDLE_SHARE * IDLE_S, f"pid {pid} of {pids}"


async def test_a_closed_pipeline_refuses_requests(tmp_path: Path) -> None:
    pipeline = load(tmp_path)
    with pytest.raises(NotReadyError, match="enter the pipeline first"):
        await words_of(pipeline, "too early")
    async with pipeline:
        run_dir = runtime_of(pipeline).run_dir
        assert run_dir.is_dir()
    assert not run_dir.exists()
    with pytest.raises(NotReadyError, match="shutting down"):
        await words_of(pipeline, "too late")
    assert await pipeline.stats() == {}
    assert pipeline.health().status == "closing"
    with pytest.raises(NotReadyError, match="load it again"):
        await pipeline.__aenter__()


async def test_health_can_be_asked_before_anything_runs(tmp_path: Path) -> None:
    runtime = Runtime(load(tmp_path)._plan, lambda stage, text: None)
    health = runtime.health()
    assert health.status == "starting"
    assert {stage.pid for stage in health.stages.values()} == {0}
    await runtime.close()
    assert not runtime.run_dir.exists()


async def test_an_impatient_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    """Cancelled while it closes, as by a second Ctrl-C."""
    async with load(tmp_path) as pipeline:
        runtime = runtime_of(pipeline)
        pids = [health.pid for health in pipeline.health().stages.values()]
        closing = asyncio.create_task(runtime.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert not runtime.run_dir.exists()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def stuck(stage: StageConfig, path: Path) -> StageConfig:
    """The stage with a factory that never comes back and never lets another thread run."""
    (path / "stuck.py").write_text("import re\n\ndef build(ctx): re.match('(a*)*b', 'a' * 60)\n")
    return replace(stage, factory=Ref("stuck:build"), env={"PYTHONPATH": str(path)})


async def test_start_up_that_is_given_up_waits_for_no_factory(tmp_path: Path) -> None:
    building = asyncio.Event()

    def note(stage: str, text: str) -> None:
        if (stage, text) == ("voice", "loading"):
            building.set()

    plan = load(tmp_path)._plan
    stages = tuple(stuck(s, tmp_path) if s.name == "voice" else s for s in plan.stages)
    runtime = Runtime(replace(plan, stages=stages), note)
    starting = asyncio.create_task(runtime.start())
    await building.wait()
    pids = {health.pid for health in runtime.health().stages.values()}
    starting.cancel()
    given_up_s = time.monotonic()
    await runtime.close()
    assert time.monotonic() - given_up_s < GIVEN_UP_S
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not runtime.run_dir.exists()


@pytest.mark.parametrize("word", ["crash:writer", "die:writer"])
async def test_a_stage_that_ends_on_the_warm_up_request_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(warm_up, "_WARM_UP_TEXT", word)
    pipeline = load(tmp_path)
    told = "writer: RuntimeError: asked to crash" if word.startswith("crash") else "with code 3"
    with pytest.raises(StageError, match=told):
        async with pipeline:
            pass
    assert not runtime_of(pipeline).run_dir.exists()


async def test_a_runtime_that_cannot_be_made_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise zmq.ZMQError(zmq.EADDRINUSE)

    monkeypatch.setattr(shm, "_root", lambda: tmp_path)
    monkeypatch.setattr(runtime_module, "CoordinatorLinks", refuse)
    plan = load(tmp_path / "model")._plan
    with pytest.raises(zmq.ZMQError):
        Runtime(plan, lambda stage, text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_output_without_line_ends_is_told_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    child = Child("talk", lambda child: None)
    with caplog.at_level(logging.INFO):
        for data in (b"10%\r20%\r\n\n", *[b"x" * 50_000] * 4, b"\nlast \xff ", b"words"):
            child.pipe_data_received(1, data)
        child.pipe_connection_lost(1, None)
    told = [record.getMessage().removeprefix("[talk] ") for record in caplog.records]
    assert told[:2] == ["10%", "20%"]
    assert sum(line.count("x") for line in told) == 200_000
    assert told[-1] == "last \ufffd words"


def test_what_a_process_logs_keeps_its_level_and_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = Child("talk", lambda child: None)
    printed = (
        b"10%\nERROR omni.stage: request 7 failed\nTraceback (most recent call last):\n  line\n"
        b"RuntimeError: no\n[mpg123] bad frame\nINFO omni.stage: on we go\nDEBUG x: y\n"
        b"WARNING omni: careful\n[mpg123] bad frame\n"
    )
    with caplog.at_level(logging.INFO):
        child.pipe_data_received(1, printed)
    info, warning, error = logging.INFO, logging.WARNING, logging.ERROR
    assert [record.levelno for record in caplog.records] == [
        info, error, error, error, error, info, info, info, warning, info,
    ]  # fmt: skip
