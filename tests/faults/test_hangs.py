"""A stage process that stands still for too long is killed, and all is as if it had died."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from caller import call
from inject import stopped
from target import Start, Target, until
from test_deaths import PATIENT, TOLD_ANYWHERE_S, TOLD_S, check_told, in_flight, saying
from traces import is_running

LIMIT_S = 3.0
FOUND_S = LIMIT_S * 8 / 6
"""Asked in the first sixth, counted in sixths."""


@pytest.fixture
def watchful(start_echo: Start) -> Iterator[Target]:
    target = start_echo("--watchdog-timeout-s", str(LIMIT_S))
    try:
        target.wait_ready()
        yield target
    finally:
        target.close()


@pytest.mark.parametrize(
    ("victim", "stage", "told_s"),
    [
        ("front", "writer", TOLD_ANYWHERE_S),
        pytest.param("front", "writer", TOLD_S, marks=pytest.mark.matrix),
        pytest.param("voice", "voice", TOLD_S, marks=pytest.mark.matrix),
    ],
)
async def test_whoever_waits_for_it_is_told(
    watchful: Target, victim: str, stage: str, told_s: float
) -> None:
    spoken = saying("hang", "text", "audio")
    begun = await in_flight(watchful, [{**spoken, "stream": True}, spoken])
    await asyncio.to_thread(
        until, lambda: watchful.gauges().get(("writer", "running")) == 2, 20, "both hang"
    )
    pid = watchful.processes()[victim]
    with stopped(pid):
        late = asyncio.create_task(call(watchful.url, spoken, PATIENT))
        await asyncio.to_thread(
            until, lambda: not is_running(pid), FOUND_S + TOLD_ANYWHERE_S, "it is killed"
        )
        killed_s = asyncio.get_running_loop().time()
        streamed, whole, unbegun = await asyncio.gather(*begun, late)
    for one in (whole, unbegun):
        check_told(streamed, one, killed_s + told_s)
    assert unbegun.seconds > LIMIT_S, "it is given its time"
    health = watchful.health()["stages"][stage]
    assert health["last_death"] == "hang"
    assert any("does not answer" in line for line in watchful.lines)
    await asyncio.to_thread(watchful.wait_whole)
    assert watchful.health()["stages"][stage]["restarts"] == 1
    heard = await call(watchful.url, saying("on", "text", "audio"))
    assert (heard.status, heard.text) == (200, "on ")
