"""Recordings of torch's profiler: every thread, one at a time, a file for each process."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.traces import Traces
from omni_core.errors import ConflictError, ErrorInfo, RequestError
from omni_core.messages import StageDoc, StartTrace, StopTrace, ToStage, TraceEnded, TraceStarted
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref, StageConfig
from omni_core.stage.wishes import Answer, Wishes
from omni_core.testing import echo

PATIENCE_S = 30.0
STAGES = [
    StageConfig(name="ear", factory=Ref("m:f"), process="head"),
    StageConfig(name="eye", factory=Ref("m:f"), process="head"),
    StageConfig(name="voice", factory=Ref("m:f"), replicas=2),
]
DOC = StageDoc(name="voice", factory="m:f", process="voice", device="cpu", dtype="float32")


# -- in a process


def multiply(released: threading.Event, counts: list[int]) -> None:
    factor = torch.ones(4, 4)
    while not released.wait(0.001):
        torch.mm(factor, factor)
        counts[0] += 1


def test_threads_that_run_already_are_in_the_file(tmp_path: Path) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    wishes = Wishes(answers.put)
    wishes.begin([DOC])
    released, counts = threading.Event(), [0]
    thread = threading.Thread(target=multiply, args=(released, counts), name="stage-voice")
    thread.start()
    try:
        ask = StartTrace(query_id=7, directory=str(tmp_path), stamp="now-1", seconds=PATIENCE_S)
        wishes.grant("voice@1", ask)
        started = answers.get(timeout=PATIENCE_S)
        file = tmp_path / "trace-now-1-voice@1.json.gz"
        assert started == TraceStarted(query_id=7, process="voice@1", file=str(file))
        before = counts[0]
        while counts[0] < before + 5:
            released.wait(0.001)
        wishes.grant("voice@1", StopTrace())
        ended = answers.get(timeout=PATIENCE_S)
    finally:
        released.set()
        thread.join()
    assert isinstance(ended, TraceEnded)
    number = ended.threads["stage-voice"]
    assert number == thread.native_id
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert sum(e["name"] == "aten::mm" and e["tid"] == number for e in events) >= 5
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_recording_ends_by_itself_and_one_that_cannot_begin_says_why(tmp_path: Path) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    wishes = Wishes(answers.put)
    ask = StartTrace(query_id=1, directory=str(tmp_path), stamp="s", seconds=0.01)
    wishes.grant("voice", ask)
    assert isinstance(answers.get(timeout=PATIENCE_S), TraceStarted)
    ended = answers.get(timeout=PATIENCE_S)
    assert isinstance(ended, TraceEnded)
    assert ended.error is None
    wishes.grant("voice", ask)  # the file is there
    refused = answers.get(timeout=PATIENCE_S)
    assert isinstance(refused, TraceStarted)
    assert refused.error is not None
    assert "FileExistsError" in refused.error.message
    wishes.grant("voice", StopTrace())  # nothing to stop


@pytest.mark.parametrize("step", ["start", "export_chrome_trace"])
def test_a_recording_that_fails_says_why_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*arguments: object) -> None:
        assert list(tmp_path.iterdir())
        raise RuntimeError("no device to trace")

    monkeypatch.setattr(torch.profiler.profile, step, fail)
    answers: SimpleQueue[Answer] = SimpleQueue()
    wishes = Wishes(answers.put)
    wishes.grant("voice", StartTrace(query_id=1, directory=str(tmp_path), stamp="s", seconds=0.01))
    told = answers.get(timeout=PATIENCE_S)
    if step != "start":
        told = answers.get(timeout=PATIENCE_S)
    assert isinstance(told, TraceStarted if step == "start" else TraceEnded)
    assert told.error is not None
    assert "no device to trace" in told.error.message
    assert not list(tmp_path.iterdir())


def test_a_stop_is_heard_before_the_recording_has_begun(tmp_path: Path) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    wishes = Wishes(answers.put)
    wishes.begin([DOC])
    ask = StartTrace(query_id=1, directory=str(tmp_path), stamp="s", seconds=10 * PATIENCE_S)
    wishes.grant("voice", ask)
    wishes.grant("voice", StopTrace())
    assert isinstance(answers.get(timeout=PATIENCE_S), TraceStarted)
    assert isinstance(answers.get(timeout=PATIENCE_S), TraceEnded)


# -- in the coordinator


class World:
    """Processes that begin as told, and end when they are asked to."""

    def __init__(self, refuse: tuple[str, ...] = ()) -> None:
        self.fleet = Fleet(STAGES)
        for replica in self.fleet.replicas:
            replica.state = "ready"
        self.refuse = refuse
        self.traces = Traces(self.fleet, self.send)
        self.stopped: list[str] = []

    def send(self, process: str, message: ToStage) -> None:
        soon = asyncio.get_running_loop().call_soon
        match message:
            case StartTrace():
                error = ErrorInfo(kind="RequestError", message="no torch")
                reply = TraceStarted(
                    query_id=message.query_id,
                    process=process,
                    file=f"{message.directory}/{process}",
                    error=error if process in self.refuse else None,
                )
                soon(self.traces.desk.answer, reply)
            case StopTrace():
                self.stopped.append(process)
                soon(self.traces.ended, TraceEnded(process=process, threads={"stage": 5}))
            case _:
                raise AssertionError(message)


async def test_each_process_of_the_stages_has_a_file_and_names_its_stages() -> None:
    world = World()
    begun = await world.traces.start("/traces", 5, ["eye", "voice"])
    assert {process: traced.file for process, traced in begun.items()} == {
        "head": "/traces/head", "voice": "/traces/voice", "voice.1": "/traces/voice.1",
    }  # fmt: skip
    assert begun["head"].stages == ("ear", "eye")
    with pytest.raises(ConflictError, match="under way"):
        await world.traces.start("/traces", 5, ["eye"])
    done = await world.traces.stop()
    assert done["voice.1"].threads == {"stage": 5}
    assert sorted(world.stopped) == ["head", "voice", "voice.1"]
    assert await world.traces.stop() == done
    assert [*await world.traces.start("/traces", 5, ["ear"])] == ["head"]


async def test_a_file_that_was_not_written_is_none() -> None:
    world = World()
    failed = ErrorInfo(kind="StageError", message="no space left")

    def send(process: str, message: ToStage) -> None:
        assert isinstance(message, StartTrace)
        started = TraceStarted(query_id=message.query_id, process=process, file="/traces/head")
        traces.desk.answer(started)
        traces.ended(TraceEnded(process=process, error=failed))

    traces = Traces(world.fleet, send)
    with pytest.raises(RequestError, match="no space left"):
        await traces.start("/traces", 5, ["eye"])
    done = await traces.stop()
    assert (done["head"].file, done["head"].reason) == (None, "no space left")


async def test_who_cannot_record_or_dies_is_named() -> None:
    world = World(refuse=("voice",))
    with pytest.raises(ConflictError, match="start first"):
        await world.traces.stop()
    begun = await world.traces.start("/traces", 5, ["voice"])
    assert (begun["voice"].file, begun["voice"].reason) == (None, "no torch")
    world.traces.forget("voice.1")
    world.traces.ended(TraceEnded(process="voice.1"))
    done = await world.traces.stop()
    assert (done["voice.1"].file, done["voice.1"].reason) == (None, "it has died")
    world.refuse = ("head",)
    with pytest.raises(RequestError, match="no process can record: head: no torch"):
        await world.traces.start("/traces", 5, ["eye"])
    for replica in world.fleet.replicas:
        replica.state = "starting"
    with pytest.raises(RequestError, match="none of them is ready"):
        await world.traces.start("/traces", 5, ["eye"])


# -- in processes


async def test_processes_without_torch_say_so(tmp_path: Path) -> None:
    checkpoint = echo.write_checkpoint(tmp_path / "echo")
    async with Pipeline.load(checkpoint, plugins=echo.plugins(), device="cpu") as pipeline:
        with pytest.raises(RequestError, match="no stage of it uses torch: intake, writer"):
            await pipeline.start_trace(str(tmp_path))
    assert not list(tmp_path.glob("trace*"))
