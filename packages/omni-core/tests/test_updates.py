"""New weights for a pipeline that runs: all of its processes have them, or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from omni_core.coordinator.admission import Occupancy
from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.updates import Updates
from omni_core.errors import (
    ConflictError,
    ErrorInfo,
    NotReadyError,
    OmniError,
    RequestError,
    StageError,
)
from omni_core.messages import NewWeights, StageDoc, ToStage, WeightsReply
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref, StageConfig, WeightsKind
from omni_core.stage.wishes import Answer, Wishes
from omni_core.testing import echo
from omni_core.types import Message, Request, TextDelta, TextPart

STAGES = [StageConfig(name=name, factory=Ref("m:f")) for name in ("ear", "mouth")]
BAD = ErrorInfo(kind="ConfigError", message="it does not fit")
Says = Callable[[str, NewWeights], ErrorInfo | None]


class World:
    """Everything around an update: processes that answer as a function says, and requests."""

    def __init__(self, answer: Says, *, silent: tuple[str, ...] = ()) -> None:
        self.fleet = Fleet(STAGES)
        for replica in self.fleet.replicas:
            replica.state = "ready"
        self.answer, self.silent = answer, silent
        self.told: list[tuple[str, str, bool]] = []
        self.happened: list[str] = []
        self.restarted: list[str] = []
        self.running = 0
        self.updates = Updates("old", self.fleet, self, self, self.send, load_limit_s=0.05)

    def send(self, process: str, message: ToStage) -> None:
        assert isinstance(message, NewWeights)
        self.told.append((process, message.model_path, message.load))
        if message.load and process in self.silent:
            return
        error = self.answer(process, message)
        reply = WeightsReply(query_id=message.query_id, process=process, error=error)
        asyncio.get_running_loop().call_soon(self.updates.desk.answer, reply)

    async def run(self, **how: object) -> None:
        await self.updates.run("new", **{"running": "wait", "wait_s": 1.0, **how})  # type: ignore[arg-type]

    def hold(self) -> None:
        self.happened.append("hold")

    def go_on(self) -> None:
        self.happened.append("go on")

    def end_running(self, error: OmniError) -> None:
        assert error.retryable
        self.happened.append("end")
        self.running = 0

    def occupancy(self) -> Occupancy:
        return Occupancy(in_flight=self.running)

    def build_from(self, model_path: str) -> None:
        self.happened.append(f"build from {model_path}")

    def restart(self, process: str, reason: str) -> None:
        self.restarted.append(process)


def good(process: str, message: NewWeights) -> None:
    return None


def fails(where: str, path: str, *, load: bool = True) -> Says:
    def answer(process: str, message: NewWeights) -> ErrorInfo | None:
        asked = (process, message.model_path, message.load)
        return BAD if asked == (where, path, load) else None

    return answer


async def test_all_are_compared_before_any_loads() -> None:
    world = World(good)
    await world.run()
    checks = [("ear", "new", False), ("mouth", "new", False)]
    assert world.told == [*checks, ("ear", "new", True), ("mouth", "new", True)]
    assert world.happened == ["hold", "build from new", "go on"]
    assert world.updates.model_path == "new"


async def test_what_does_not_fit_somewhere_is_loaded_nowhere() -> None:
    world = World(fails("mouth", "new", load=False))
    with pytest.raises(RequestError, match="does not fit") as refused:
        await world.run()
    assert refused.value.code == "invalid_checkpoint"
    assert not any(load for *_, load in world.told)
    assert world.happened == []


async def test_after_a_failure_everybody_loads_the_old_weights_again() -> None:
    world = World(fails("mouth", "new"))
    with pytest.raises(StageError, match=r"does not fit; the old weights are served again"):
        await world.run()
    assert world.told[-2:] == [("ear", "old", True), ("mouth", "old", True)]
    assert world.happened == ["hold", "go on"]
    assert (world.restarted, world.updates.model_path) == ([], "old")


async def test_who_cannot_go_back_is_started_again() -> None:
    def broken(process: str, message: NewWeights) -> ErrorInfo | None:
        return BAD if process == "mouth" and message.load else None

    world = World(broken)
    with pytest.raises(StageError):
        await world.run()
    assert world.restarted == ["mouth"]
    late = World(good, silent=("ear",))
    with pytest.raises(StageError, match="not answered in time"):
        await late.run()
    assert late.restarted == ["ear"]
    assert late.told[-1] == ("mouth", "old", True)


async def test_a_death_after_the_last_answer_counts() -> None:
    def dying(process: str, message: NewWeights) -> None:
        if message.load and message.model_path == "new" and process == "mouth":
            world.fleet.find("ear").state = "dead"  # type: ignore[union-attr]

    world = World(dying)
    with pytest.raises(StageError, match="a process has died"):
        await world.run()
    assert "build from new" not in world.happened


async def test_requests_that_run_are_waited_for_or_ended() -> None:
    world = World(good)
    world.running = 2
    with pytest.raises(ConflictError, match="2 requests") as refused:
        await world.run(wait_s=0.0)
    assert refused.value.code == "requests_running"
    assert world.happened == ["hold", "go on"]
    await world.run(running="abort")
    assert world.happened[2:] == ["hold", "end", "build from new", "go on"]


async def test_one_update_at_a_time_and_none_without_all_processes() -> None:
    world = World(good)
    first = asyncio.create_task(world.run())
    await asyncio.sleep(0)
    with pytest.raises(ConflictError, match="already"):
        await world.run()
    await first
    world.fleet.replicas[1].state = "starting"
    with pytest.raises(NotReadyError, match="mouth"):
        await world.run()


# -- in a process


class Noted:
    """A `WeightLoader` that writes down its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def check(self, model_path: str) -> None:
        self.calls.append(f"check {model_path}")

    def load(self, model_path: str) -> None:
        self.calls.append(f"load {model_path}")


@pytest.mark.parametrize(
    ("weights", "hands_over", "refused"),
    [("none", False, False), ("loads", True, False), ("loads", False, True), ("fixed", True, True)],
)
def test_a_stage_says_what_it_can_do(weights: WeightsKind, hands_over: bool, refused: bool) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    wishes, loader = Wishes(answers.put), Noted()
    doc = StageDoc(
        name="mouth", factory="m:f", process="p", device="cpu", dtype="float32", weights=weights
    )
    wishes.begin([doc])
    if hands_over:
        wishes.keep_loader("mouth", loader)
    for load in (False, True):
        wishes.grant("p", NewWeights(query_id=3, model_path="new", load=load))
        reply = answers.get(timeout=10)
        assert isinstance(reply, WeightsReply)
        assert (reply.query_id, reply.process) == (3, "p")
        assert (reply.error is not None) == refused
        if reply.error is not None:
            assert "'mouth' (engine torch) cannot load new weights" in reply.error.message
    assert loader.calls == (["check new", "load new"] if hands_over and not refused else [])


# -- real processes


def checkpoint(path: Path, **weights: str) -> str:
    directory = echo.write_checkpoint(path)
    (path / "weights.json").write_text(json.dumps(weights))
    return directory


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[Pipeline]:
    old = checkpoint(tmp_path / "old", word="?")
    async with Pipeline.load(old, plugins=echo.plugins(), device="cpu") as running:
        yield running


async def said(pipeline: Pipeline, text: str = "one two") -> str:
    message = Message(role="user", content=(TextPart(text=text),))
    events = pipeline.generate(Request(messages=(message,)))
    return "".join([e.text async for e in events if isinstance(e, TextDelta)])


async def test_requests_never_meet_weights_of_two_checkpoints(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    assert await said(pipeline) == "one? two? "
    for order in ("fail", "die"):
        bad = checkpoint(tmp_path / order, word="#", **{order: "voice"})
        with pytest.raises(StageError, match="old weights are served again"):
            await pipeline.update_weights(bad)
        assert await said(pipeline) == "one? two? "
    with pytest.raises(NotReadyError):  # until voice is there again
        await pipeline.update_weights(checkpoint(tmp_path / "new", word="!"))
    async with asyncio.timeout(20):
        while pipeline.health().status != "ready":
            await asyncio.sleep(0.02)
    await pipeline.update_weights(str(tmp_path / "new"), revision="r2")
    assert await said(pipeline) == "one! two! "
    assert (pipeline.manifest().checkpoint, pipeline.manifest().revision) == ("new", "r2")


async def test_what_is_no_checkpoint_of_it_is_refused_by_name(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    wrong = checkpoint(tmp_path / "wrong")
    (tmp_path / "wrong" / "weights.json").write_text('{"word": 7}')
    (tmp_path / "empty").mkdir()
    for path, told in ((wrong, "is no text"), (str(tmp_path / "empty"), "has no config.json")):
        with pytest.raises(RequestError, match=told) as refused:
            await pipeline.update_weights(path)
        assert (refused.value.code, refused.value.param) == ("invalid_checkpoint", "path")
    with pytest.raises(RequestError, match="served already"):
        await pipeline.update_weights(str(tmp_path / "old"))
    assert await said(pipeline) == "one? two? "
