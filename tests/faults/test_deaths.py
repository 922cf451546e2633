"""A stage process that is killed takes its requests with it and nothing else, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from caller import Heard, Manners, call
from inject import kill
from questions import QUESTIONS, answers, endless
from target import Target, until

TOLD_S = 0.1
TOLD_BUSY_S = 0.5
"""Where other processes compute on every core while the news travels."""
TOLD_ANYWHERE_S = 5.0
"""On a machine that has other work to do."""
PATIENT = Manners(patience_s=60)
SPEECH = next(question for question in QUESTIONS if question.name == "speech all")
STAGES = {"front": "writer", "voice": "voice"}
VICTIMS = [
    pytest.param("talker", TOLD_ANYWHERE_S),
    pytest.param("thinker", TOLD_ANYWHERE_S, marks=pytest.mark.sglang),
    *(
        pytest.param(name, TOLD_BUSY_S, marks=pytest.mark.matrix)
        for name in ("frontend", "encoders", "thinker", "talker", "code2wav")
    ),
]


def saying(word: str, *modalities: str) -> dict[str, object]:
    """A request to the echo pipeline, which holds "hang" until something ends it."""
    return {"messages": [{"role": "user", "content": word}], "modalities": modalities}


async def in_flight(
    target: Target, bodies: Sequence[dict[str, object]]
) -> list[asyncio.Task[Heard]]:
    """Requests that the server has begun, streams of which the client has heard something, and
    that do not end by themselves."""
    heard = [Heard() for _ in bodies]
    tasks = [
        asyncio.create_task(call(target.url, body, PATIENT, heard=reply))
        for body, reply in zip(bodies, heard, strict=True)
    ]

    def all_begun() -> bool:
        streams = (reply for body, reply in zip(bodies, heard, strict=True) if body.get("stream"))
        return target.counter("omni_requests_in_flight") >= len(bodies) and all(
            reply.events for reply in streams
        )

    await asyncio.to_thread(until, all_begun, 20, "all requests are in flight")
    return tasks


def check_told(streamed: Heard, whole: Heard, deadline_s: float) -> None:
    """Both callers know at once, and know that they may try again."""
    assert (streamed.status, streamed.whole, streamed.done) == (200, False, False)
    assert streamed.error is not None
    assert whole.status == 503
    assert whole.error is not None
    assert whole.headers["retry-after"] == "1"
    assert {heard.error["code"] for heard in (streamed, whole) if heard.error} == {"stage_died"}
    assert max(heard.ended_s for heard in (streamed, whole)) < deadline_s


async def check_back(target: Target, stage: str, restarts: int) -> None:
    """The stage has been started again, in time."""
    await asyncio.to_thread(target.wait_whole)
    assert target.health()["stages"][stage]["restarts"] == restarts


@pytest.mark.parametrize("victim", STAGES)
@pytest.mark.parametrize(
    "told_s", [TOLD_ANYWHERE_S, pytest.param(TOLD_S, marks=pytest.mark.matrix)]
)
async def test_of_the_echo_pipeline(echo_target: Target, victim: str, told_s: float) -> None:
    before, spoken = echo_target.processes(), saying("hang", "text", "audio")
    streamed, whole, written = await in_flight(
        echo_target,
        [{**spoken, "stream": True}, spoken, saying("hang", "text")],
    )
    await asyncio.to_thread(
        until, lambda: echo_target.gauges().get(("writer", "running")) == 3, 20, "all hang"
    )
    killed_s = kill(before[victim])
    check_told(await streamed, await whole, killed_s + told_s)
    await check_back(echo_target, STAGES[victim], 1)
    assert written.done() == (victim == "front")  # who speaks to nobody needs no voice
    after = echo_target.processes()
    assert {name for name in before if before[name] != after[name]} == {victim}
    heard = await call(echo_target.url, saying("on", "text", "audio"))
    assert (heard.status, heard.text) == (200, "on ")
    written.cancel()


@pytest.mark.parametrize(("victim", "told_s"), VICTIMS)
async def test_of_the_tiny_checkpoint(tiny_target: Target, victim: str, told_s: float) -> None:
    await asyncio.to_thread(tiny_target.wait_whole)
    known = await answers(tiny_target.url, [SPEECH])
    long = endless(spoken=True)
    tasks = await in_flight(tiny_target, [long.written(stream=stream) for stream in (True, False)])
    await asyncio.to_thread(
        until, lambda: tiny_target.gauges().get(("code2wav", "running")) == 2, 30, "both speak"
    )
    health = tiny_target.health()["stages"]
    pid = tiny_target.processes()[victim]
    stage = next(name for name in health if health[name]["pid"] == pid)
    killed_s = kill(pid)
    streamed, whole = [await task for task in tasks]
    check_told(streamed, whole, killed_s + told_s)
    await check_back(tiny_target, stage, health[stage]["restarts"] + 1)
    heard = await call(tiny_target.url, SPEECH.written(stream=True), PATIENT)
    assert known[SPEECH.name].differs(heard) == ""
