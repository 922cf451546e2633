"""Silence after a reply, on a clock that jumps to the next moment at which anything happens."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

from omni_core.types import Finished, TextDelta, Usage

FINISHED = Finished(finish_reason="stop", usage=Usage(prompt_tokens=3, text_tokens=2))
TIMEOUT = "input_audio_buffer.timeout_triggered"
IDLE_S = 60.0
#: Its successor is not in the oldest pytest-asyncio that is tested.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


class JumpingLoop(asyncio.SelectorEventLoop):
    """When nothing is left to do, it is the time of the next timer; threads are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s, self.in_threads = 0.0, 0
        select = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            if self.in_threads or not timeout:
                return select(timeout)
            if not (events := select(0)):
                self.skipped_s += timeout
            return events

        self._selector.select = jump

    def time(self) -> float:
        return super().time() + self.skipped_s

    def run_in_executor(self, *work: Any) -> Any:
        self.in_threads += 1
        future = super().run_in_executor(*work)
        future.add_done_callback(self._one_less)
        return future

    def _one_less(self, future: Any) -> None:
        self.in_threads -= 1


class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = JumpingLoop


@pytest.fixture
def event_loop_policy() -> Policy:
    return Policy()


@pytest.fixture
async def desk(desks: Any) -> Any:
    """A session whose silence lasts a minute, and whose pipeline speaks."""
    desk = desks()
    await idle_after(desk, IDLE_S)
    desk.context.pipeline.script = lambda request: [TextDelta(text="Hello?"), FINISHED]
    return desk


async def idle_after(desk: Any, seconds: float | None, **audio: Any) -> None:
    idle_ms = seconds if seconds is None else int(seconds * 1000)
    detection = {"type": "server_vad", "idle_timeout_ms": idle_ms}
    await desk.update(audio={"input": {"turn_detection": detection}})


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def fired(desk: Any, within_s: float) -> float | None:
    """When the timer fired, from now on; None if it did not."""
    begun_s, before = now_s(), len(desk.all(TIMEOUT))
    while now_s() - begun_s < within_s:
        await asyncio.sleep(0.25)
        if len(desk.all(TIMEOUT)) > before:
            return now_s() - begun_s
    return None


async def spoken_turn(desk: Any, sounds: Any) -> None:
    for samples in (sounds.silence(0.5), sounds.speech(0.4), sounds.silence(0.7)):
        await desk.append(samples)
    await desk.quiet()


async def test_silence_is_answered_once(desk, sounds):
    await spoken_turn(desk, sounds)
    assert await fired(desk, 100) == pytest.approx(IDLE_S, abs=0.5)
    await desk.quiet()
    assert len(desk.all("response.done")) == 2
    assert await fired(desk, 1_000) is None
    await spoken_turn(desk, sounds)
    assert await fired(desk, 100) == pytest.approx(IDLE_S, abs=0.5)


async def test_silence_begins_when_a_reply_has_been_played(desk, kit, sounds):
    sound = [kit.sound(0, 20 * kit.RATE), FINISHED]
    desk.context.pipeline.script = lambda request: [TextDelta(text="Long."), *sound]
    await spoken_turn(desk, sounds)
    assert await fired(desk, 200) == pytest.approx(IDLE_S + 20, abs=1)


@pytest.mark.parametrize("does", ["writes", "commits", "asks", "speaks"])
async def test_who_does_something_is_there(desk, sounds, does):
    await spoken_turn(desk, sounds)
    assert await fired(desk, IDLE_S - 10) is None
    match does:
        case "writes":
            await desk.write()
        case "commits":
            await desk.tell("input_audio_buffer.commit")
        case "speaks":
            await desk.append(sounds.speech(0.3))
        case "asks":
            await desk.ask()
            assert await fired(desk, IDLE_S - 10) is None
            assert await fired(desk, 20) is not None
            return
    assert await fired(desk, 1_000) is None
    assert "error" not in desk.kinds


async def test_who_asks_after_a_timeout_may_be_silent_again(desk, sounds):
    await spoken_turn(desk, sounds)
    assert await fired(desk, 100)
    await desk.quiet()
    await desk.ask()
    assert await fired(desk, 100) == pytest.approx(IDLE_S, abs=0.5)


async def test_the_length_of_silence_changes_at_once(desk, sounds):
    await spoken_turn(desk, sounds)
    assert await fired(desk, 20) is None
    await idle_after(desk, 30.0)
    assert await fired(desk, 100) == pytest.approx(10, abs=0.5)
    await desk.quiet()
    await spoken_turn(desk, sounds)
    await idle_after(desk, None)
    assert await fired(desk, 1_000) is None


async def test_a_response_beside_the_conversation_is_no_answer(desk, sounds):
    await spoken_turn(desk, sounds)
    assert await fired(desk, 20) is None
    await desk.ask(conversation="none")
    assert await fired(desk, 100) == pytest.approx(40, abs=0.5)


class Slowly:
    """Runs what it is given once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def run(self, work: Callable[[], Any]) -> Any:
        await self.go.wait()
        return work()


@pytest.mark.parametrize("is_speech", [True, False])
async def test_sound_that_is_looked_at_may_be_speech(desk, sounds, is_speech):
    await spoken_turn(desk, sounds)
    slowly = desk.session._listener._threads = Slowly()
    samples = sounds.speech(0.3) if is_speech else sounds.silence(0.3)
    audio = base64.b64encode(samples.astype("<i2").tobytes()).decode()
    pushing = asyncio.create_task(desk.tell("input_audio_buffer.append", audio=audio))
    assert await fired(desk, 100) is None
    slowly.go.set()
    await pushing
    assert (TIMEOUT in desk.kinds) is not is_speech
