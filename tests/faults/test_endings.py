"""However a server ends, at whatever moment: no child, no socket file, no segment is left."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import pytest

from caller import Heard, Manners, call
from inject import kill
from target import Start, Target, until
from traces import left_behind

GONE_S = 20.0
"""After the server; a stage that is stuck in a factory leaves two seconds after its parent."""


async def hanging(target: Target, *, stream: bool, words: str = "hang") -> asyncio.Task[Heard]:
    """A request that the pipeline holds until something ends it."""
    messages = [{"role": "user", "content": words}]
    body = {"messages": messages, "modalities": ["text", "audio"], "stream": stream}
    task = asyncio.create_task(call(target.url, body, Manners(patience_s=30)))
    held = ("writer", "running")
    before = target.gauges()[held]
    await asyncio.to_thread(until, lambda: target.gauges()[held] > before, 20, "the request runs")
    return task


def nothing_left(target: Target, within_s: float) -> None:
    """AssertionError with what is left, if anything is after `within_s`."""
    with suppress(AssertionError):
        until(lambda: not left_behind(target.pid), within_s, "all gone")
    assert left_behind(target.pid) == []


@pytest.mark.parametrize(
    ("signals", "code", "drain_s"),
    [
        ((signal.SIGTERM,), 0, "1"),
        ((signal.SIGINT, signal.SIGINT), 130, "30"),
        ((signal.SIGKILL,), -9, "1"),
    ],
    ids=["SIGTERM", "SIGINT twice", "SIGKILL"],
)
async def test_under_load(
    start_echo: Start, signals: tuple[signal.Signals, ...], code: int, drain_s: str
) -> None:
    target = start_echo("--drain-timeout-s", drain_s)
    try:
        target.wait_ready()
        asked = [await hanging(target, stream=stream, words="big hang") for stream in (True, False)]
        for number in signals:
            target.signal(number)
            until(lambda: not target.is_ready(), 20, "the signal is taken")
        exit_code = await asyncio.to_thread(target.wait)
        for heard in await asyncio.gather(*asked):
            assert heard.error is not None or heard.broken
        assert exit_code == code
        nothing_left(target, GONE_S)
    finally:
        target.close()


MOMENTS = [
    pytest.param(moment, number, id=f"{number.name} at {moment}")
    for moment in ("intake: importing", "voice: ready", "pipeline: warm-up")
    for number in (signal.SIGTERM, signal.SIGKILL)
]


@pytest.mark.matrix
@pytest.mark.parametrize(("moment", "number"), MOMENTS)
def test_while_it_starts(start_echo: Start, moment: str, number: signal.Signals) -> None:
    target = start_echo()
    try:
        until(lambda: any(line.startswith(moment) for line in target.lines), 60, moment)
        target.signal(number)
        assert target.wait() in (-number, 0, 130)
        nothing_left(target, GONE_S)
    finally:
        target.close()


@pytest.mark.matrix
def test_killed_before_its_children_know_it(start_echo: Start) -> None:
    """The first child exists, and has not yet said hello."""
    target = start_echo()
    try:
        until(target.processes, 60, "a child")
        kill(target.pid)
        target.wait()
        nothing_left(target, GONE_S)
    finally:
        target.close()
