"""A process that stands still or answers late holds requests up, and fails none."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from caller import call
from inject import delayed, stopped
from questions import QUESTIONS, Answer, answers
from target import Target

STILL_S = 0.5
SPEECH = next(question for question in QUESTIONS if question.name == "speech audio_image")
VICTIMS = [
    pytest.param(name, marks=() if name == "thinker" else pytest.mark.matrix)
    for name in ("frontend", "encoders", "thinker", "talker", "code2wav")
]


@pytest.fixture(scope="module")
def known(tiny_target: Target) -> Answer:
    tiny_target.wait_whole()
    return asyncio.run(answers(tiny_target.url, [SPEECH]))[SPEECH.name]


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_stage_that_stands_still(tiny_target: Target, known: Answer, victim: str) -> None:
    with stopped(tiny_target.processes()[victim]):
        asking = asyncio.create_task(call(tiny_target.url, SPEECH.written(stream=True)))
        await asyncio.sleep(STILL_S)
        assert not asking.done()
        assert tiny_target.health()["status"] == "ready"
    heard = await asking
    assert heard.status == 200, heard.error
    assert known.differs(heard) == ""
    assert heard.seconds > STILL_S


async def test_all_stages_late(tiny_target: Target, known: Answer) -> None:
    with ExitStack() as delays:
        for pid in tiny_target.processes().values():
            delays.enter_context(delayed(pid, stop_s=0.02, run_s=0.03))
        heard = await asyncio.gather(
            *(call(tiny_target.url, SPEECH.written(stream=stream)) for stream in (True, False))
        )
    for reply in heard:
        assert reply.status == 200, reply.error
        assert known.differs(reply) == ""
