"""Places for guests: who is told what, and that a place becomes open again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from omni_core.coordinator import supervisor as supervisor_module
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.guests import Guests
from omni_core.coordinator.supervisor import Blueprint, Supervisor
from omni_core.errors import StageError
from omni_core.janitor import Janitor
from omni_core.messages import PROTOCOL_VERSION, Done, Hello, Ready, Setup, ToStage, TurnedAway
from omni_core.specs import Ref, StageConfig

BUILD = Ref("x:y")
STAGES = [
    StageConfig(name="ear", factory=BUILD, next=("voice",), process="ear"),
    StageConfig(name="voice", factory=BUILD, terminal="audio", process="voice"),
]
NAMES = ("ear", "voice")


class Lines:
    """Keeps what is sent; calls nobody."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ToStage]] = []
        self.breaks: dict[str, Callable[[str, str], None]] = {}
        self.refuses = False

    def send(self, process: str, message: ToStage) -> None:
        self.sent.append((process, message))

    def reach(
        self, process: str, address: str, on_broken: Callable[[str, str], None] | None = None
    ) -> None:
        if self.refuses:
            raise ValueError("bad address")
        if on_broken is not None:
            self.breaks[process] = on_broken

    def forget(self, process: str) -> None:
        self.breaks.pop(process, None)

    def told(self, process: str) -> list[ToStage]:
        return [message for to, message in self.sent if to == process]


class House:
    """A supervisor whose processes are all guests."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.fleet = Fleet(STAGES)
        self.coordinator = Coordinator(STAGES, "ear", self.fleet, self.lines.send)
        setup = Setup(version=PROTOCOL_VERSION, model_path="m", stages=())
        self.supervisor = Supervisor(
            {name: Blueprint({}, setup) for name in NAMES},
            self.fleet,
            self.coordinator,
            self.lines,
            Guests(self.fleet, self.lines, NAMES),
            lambda label, text: None,
            lambda process: None,
        )

    def dial_in(self, name: str) -> None:
        hello = Hello(
            version=PROTOCOL_VERSION,
            process=name,
            pid=1,
            address="tcp://127.0.0.1:7000",
            guest=True,
        )
        self.supervisor.heard(hello)

    def state(self, name: str) -> tuple[str, str]:
        [replica] = self.fleet.of_stage(name)
        return replica.process, replica.state

    def lose(self, process: str) -> None:
        self.lines.breaks[process](process, "its connection broke")


@pytest.fixture
async def house() -> House:
    return House()


async def test_nobody_speaks_to_an_open_place(house: House) -> None:
    for name in NAMES:
        house.dial_in(name)
    house.lose("voice")
    house.lose("ear")
    assert house.lines.told("voice@1") == []
    house.dial_in("voice")
    assert len(house.lines.told("voice@1")) == 1, "its setup"
    await house.supervisor.stop(0)


async def test_a_guest_that_stalls_is_told_to_leave_and_its_place_is_open(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_STALL_S", 0.01)
    house.dial_in("voice")
    async with asyncio.timeout(5):
        while house.state("voice")[0] == "voice":
            await asyncio.sleep(0.005)
    assert house.supervisor.failure is None
    assert [m for _, m in house.lines.sent if isinstance(m, TurnedAway)]
    house.dial_in("voice")
    assert house.lines.told("voice@1")
    await house.supervisor.stop(0)


async def test_a_guest_at_a_bad_address_does_not_keep_its_place(house: House) -> None:
    house.lines.refuses = True
    house.dial_in("voice")
    house.lines.refuses = False
    house.dial_in("voice")
    assert house.lines.told("voice@1"), "the next one is let in"
    await house.supervisor.stop(0)


async def test_a_guest_lost_in_the_first_warm_up_may_come_back(
    house: House, tmp_path: Path
) -> None:
    starting = asyncio.create_task(house.supervisor.start(tmp_path, cast("Janitor", None)))
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        for attempt, voice in enumerate(("voice", "voice@1")):
            for name, process in (("ear", "ear"), ("voice", voice))[attempt:]:
                house.dial_in(name)
                house.supervisor.heard(Ready(process=process, stage=name))
            while house.coordinator.in_flight == 0:
                await asyncio.sleep(0)
            if attempt == 0:
                house.lose("voice")
                while house.coordinator.in_flight:
                    await asyncio.sleep(0)
        [request_id] = house.coordinator._active
        for stage, opened in (("ear", ("voice",)), ("voice", ())):
            done = Done(
                request_id=request_id,
                stage=stage,
                opened=opened,
                start_s=0.0,
                first_output_s=None,
                end_s=0.0,
            )
            house.coordinator.handle(done)
        await starting
    assert house.supervisor.serving
    assert house.state("voice") == ("voice@1", "ready")
    await house.supervisor.stop(0)


async def test_only_fresh_processes_the_warm_up_passed_are_ended(house: House) -> None:
    for name in NAMES:
        house.dial_in(name)
        house.supervisor.heard(Ready(process=name, stage=name))
    house.supervisor.serving = True
    house.supervisor._warm_up._blame({"voice": "voice"}, StageError("bad"))
    assert house.state("voice") == ("voice@1", "starting")
    assert house.state("ear") == ("ear", "built")
    await house.supervisor.stop(0)
