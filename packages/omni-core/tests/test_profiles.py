"""What threads do, seen from outside, and asking several processes for it."""

from __future__ import annotations

import asyncio
import threading

from omni_core.coordinator.desk import Desk
from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.profiles import ask_stacks
from omni_core.messages import Profile, ProfileReply, ToStage
from omni_core.specs import Ref, StageConfig
from omni_core.stage.sampler import sample

STAGE = StageConfig(name="voice", factory=Ref("m:f"), replicas=3)


def wait_here(released: threading.Event) -> None:
    released.wait()


def test_every_thread_but_the_sampler_is_seen() -> None:
    released = threading.Event()
    thread = threading.Thread(target=wait_here, args=(released,), name="stage-a;b")
    thread.start()
    try:
        stacks = sample(0.02)
    finally:
        released.set()
        thread.join()
    [seen] = [stack for stack in stacks if stack.startswith("stage-a,b;")]
    assert stacks[seen] >= 1
    assert f"{__name__}.wait_here;threading.Event.wait" in seen
    assert not any("sampler.sample" in stack for stack in stacks)


async def test_processes_that_are_gone_or_late_are_left_out() -> None:
    fleet = Fleet([STAGE])
    for replica in fleet.replicas[:2]:
        replica.state = "ready"
    asked: list[str] = []

    def send(process: str, message: ToStage) -> None:
        assert isinstance(message, Profile)
        asked.append(process)
        if process == "voice.1":
            reply = ProfileReply(query_id=message.query_id, process=process, stacks={"a": 1})
            asyncio.get_running_loop().call_soon(desk.answer, reply)

    desk: Desk[ProfileReply] = Desk(send)
    assert await ask_stacks(fleet, desk, "voice", -4.9) == {"voice.1": {"a": 1}}
    assert asked == ["voice", "voice.1"]
    desk.answer(ProfileReply(query_id=0, process="voice", stacks={}))
    asyncio.get_running_loop().call_later(0.01, desk.forget, "voice")
    async with asyncio.timeout(2):
        assert await ask_stacks(fleet, desk, "voice", 60.0) == {"voice.1": {"a": 1}}
    fleet.replicas[0].state = fleet.replicas[1].state = "dead"
    assert await ask_stacks(fleet, desk, "voice", 0.1) == {}
