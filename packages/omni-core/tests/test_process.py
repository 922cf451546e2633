"""The loop of a stage process, one verb at a time, without a coordinator."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from omni_core.addresses import COORDINATOR, AddressBook, address, segments
from omni_core.codec import INLINE_LIMIT_BYTES, Codec, batch
from omni_core.errors import ProtocolError
from omni_core.messages import (
    Fail,
    Ping,
    Pong,
    Progress,
    Setup,
    StageDoc,
    StatsQuery,
    StatsReply,
    StreamChunk,
    ToCoordinator,
    ToStage,
)
from omni_core.relay.slabs import SharedMemory
from omni_core.stage.egress import Egress
from omni_core.stage.process import Home, StageProcess

DOC = StageDoc(
    name="intake",
    factory="omni_core.testing.echo:build_intake",
    process="front",
    device="cpu",
    dtype="float32",
)


class RecordingEgress(Egress):
    """Keeps what would be sent."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.frames: list[list[Any]] = []

    def post(self, peer: str, message: ToCoordinator | ToStage) -> None:
        assert peer == COORDINATOR
        self.frames.append(self._codec.encode(message))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StageProcess]:
    segments(tmp_path).mkdir()
    made = StageProcess("front", Home.of_run(tmp_path))
    made._egress = RecordingEgress(made._context, AddressBook(tmp_path), Codec(), made._fail_unsent)
    yield made
    made._close()


def setup(version: int = 1) -> Setup:
    return Setup(version=version, model_path="m", stages=(DOC,))


def receive(process: StageProcess) -> None:
    """Wait for something to arrive, and take it."""
    while not (arrived := process._ingress.read()):
        assert select.select([process._ingress.descriptor], [], [], 5.0)[0]
    process._take(arrived)


def posted(process: StageProcess) -> list[Any]:
    """What was sent to the coordinator since the last time."""
    assert isinstance(process._egress, RecordingEgress)
    found, process._egress.frames = process._egress.frames, []
    return [Codec().decode(frames, ToCoordinator) for frames in found]


@pytest.mark.parametrize("stats", [lambda: 1 / 0, lambda: {"requests": np.int64(3)}])
def test_counters_that_cannot_be_told_do_not_end_the_process(
    process: StageProcess, stats: Any
) -> None:
    process._nodes["x"] = SimpleNamespace(stats=stats, close=lambda: None, join=lambda s: None)  # type: ignore[assignment]
    process._dispatch(StatsQuery(query_id=7))
    assert posted(process) == [StatsReply(query_id=7, process="front", stats={})]


def test_counters_are_told_by_stage(process: StageProcess) -> None:
    stats = SimpleNamespace(stats=lambda: {"n": 1.0}, close=lambda: None, join=lambda s: None)
    process._nodes["x"] = stats  # type: ignore[assignment]
    process._dispatch(StatsQuery(query_id=8))
    [reply] = posted(process)
    assert isinstance(reply, StatsReply)
    assert (reply.query_id, reply.process, reply.stats) == (8, "front", {"x": {"n": 1.0}})
    assert reply.relay["slots_used"] == reply.relay["bytes_inline"] == 0


def test_a_message_for_no_stage_fails_its_request(process: StageProcess) -> None:
    process._dispatch(StreamChunk(request_id="r", source="a", target="gone", data=1))
    [fail] = posted(process)
    assert isinstance(fail, Fail)
    assert (fail.request_id, fail.error.kind) == ("r", "ProtocolError")
    assert "'front' has no stage 'gone'" in fail.error.message


def test_a_lost_segment_fails_its_request(process: StageProcess, tmp_path: Path) -> None:
    sender = Codec(SharedMemory(segments(tmp_path), "peer"))
    large = np.zeros(INLINE_LIMIT_BYTES + 1, np.uint8)
    [header] = sender.encode(StreamChunk(request_id="r", source="a", target="x", data=large))
    for segment in segments(tmp_path).glob("peer@*"):
        segment.unlink()
    with zmq.Context() as context, context.socket(zmq.PUSH) as line:
        line.connect(address(tmp_path, "front"))
        line.send(batch([header]))
        receive(process)
    [fail] = posted(process)
    assert fail.request_id == "r"
    assert "cannot be opened" in fail.error.message


def test_a_flood_of_input_is_taken_in_bursts(process: StageProcess, tmp_path: Path) -> None:
    message = StreamChunk(request_id="r", source="a", target="gone", data=1)
    with zmq.Context() as context, context.socket(zmq.PUSH) as line:
        line.connect(address(tmp_path, "front"))
        for _ in range(200):
            line.send(batch(Codec().encode(message)))
        taken = []
        while sum(taken) < 200:
            receive(process)
            taken.append(len(posted(process)))
    assert max(taken) <= 64


def test_a_ping_is_answered(process: StageProcess) -> None:
    process._dispatch(Ping())
    assert posted(process) == [Pong(process="front")]


def test_another_version_is_refused(process: StageProcess) -> None:
    with pytest.raises(ProtocolError, match="speaks version 2, this process 6; install one"):
        process._build(setup(version=2))


def test_factories_may_report_from_their_own_threads(process: StageProcess, tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as ear:
        ear.bind(address(tmp_path, COORDINATOR))
        process._egress = Egress(
            process._context, AddressBook(tmp_path), Codec(), process._fail_unsent
        )
        report = process._stage_context(DOC, setup()).report
        threads = [threading.Thread(target=report, args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = []
        while len(told) < 8:
            assert ear.poll(5000)
            told += Codec().decode_batch(ear.recv_multipart(), ToCoordinator)
    told.sort(key=lambda news: news.text)
    assert told == [Progress(process="front", stage="intake", text=str(n)) for n in range(8)]
