"""Streams that are aborted, of every kind: the server holds what it held before, and not more.

What it holds is read from /proc, /dev/shm, the allocators and the queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

import pytest

from caller import Heard, Manners, call
from questions import SPOKEN, Question, answers, endless
from target import Target, until
from traces import Holdings, holdings

AT_ONCE: Final = 8
RELEASED_S: Final = 20.0
GROWTH_BYTES: Final = 12 * 2**20
"""Of any process: what an allocator keeps for next time. A leak of 16 KiB per stream would exceed
it in the long run."""
HELD: Final = ("held", "gathering", "inbox", "waiting", "running", "kv_pages_used")
SERVER_HELD: Final = (
    "omni_requests_in_flight",
    "omni_requests_admitted",
    "omni_queue_depth",
    "omni_aborts_pending",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """When a client leaves."""

    question: Question
    manners: Manners
    reached: Callable[[Heard], bool]
    """Whether it got as far as it should."""


SPEECH: Final = endless(spoken=True)
_SHORT: Final = {"max_tokens": 4, "min_tokens": 4}
BRIEF: Final = Question(
    name="brief speech",
    body=SPEECH.body | _SHORT | {"stage_params": {"talker_ar": _SHORT}},
    visits=SPEECH.visits,
)
KINDS: Final = {
    "before prefill": Kind(
        question=SPEECH,
        manners=Manners(leave_after_s=0.02),
        reached=lambda heard: not heard.text,
    ),
    "mid text": Kind(
        question=endless(spoken=False),
        manners=Manners(leave_when=lambda heard: bool(heard.text)),
        reached=lambda heard: bool(heard.text),
    ),
    "mid audio": Kind(
        question=SPEECH,
        manners=Manners(leave_when=lambda heard: bool(heard.sound)),
        reached=lambda heard: bool(heard.sound),
    ),
    "after the last chunk": Kind(
        question=BRIEF,
        manners=Manners(leave_when=lambda heard: heard.finish_reason is not None),
        reached=lambda heard: heard.finish_reason is not None and not heard.done,
    ),
    "never read": Kind(
        question=SPEECH,
        manners=Manners(deaf=True, leave_after_s=0.3),
        reached=lambda heard: heard.status == 0,
    ),
}


async def abort(target: Target, count: int) -> None:
    """So many streams of all kinds in turn, a few at once, and each as far as its kind goes."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        kind = KINDS[name]
        async with places:
            heard = await call(target.url, kind.question.written(stream=True), kind.manners)
        assert heard.left, f"{name}: {heard}"
        assert kind.reached(heard), f"{name}: {heard}"

    await asyncio.gather(*(one(name) for name in islice(cycle(KINDS), count)))


def busy(target: Target) -> dict[object, float]:
    """What the server and its stages say they hold of any request."""
    stages = {key: value for key, value in target.gauges().items() if key[1] in HELD and value}
    server = {name: value for name in SERVER_HELD if (value := target.counter(name))}
    return {**stages, **server}


def quiet(target: Target) -> Holdings:
    """What the server holds once it holds nothing of any request."""
    until(lambda: not busy(target), RELEASED_S, "all is released")
    return holdings(target.pid)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.matrix)])
async def test_aborted_streams_leave_nothing(tiny_target: Target, count: int) -> None:
    question = SPOKEN[0]
    [answer] = (await answers(tiny_target.url, [question])).values()
    await abort(tiny_target, 40)
    before = quiet(tiny_target)
    seen = tiny_target.counter("omni_aborts_total")
    await abort(tiny_target, count)
    after = quiet(tiny_target)

    assert tiny_target.counter("omni_aborts_total") - seen >= count // 2
    assert after.processes == before.processes
    assert after.open_files == before.open_files
    assert (after.segments, after.segment_bytes) == (before.segments, before.segment_bytes)
    grown = {
        name: resident - before.resident_bytes[name]
        for name, resident in after.resident_bytes.items()
    }
    assert max(grown.values()) < GROWTH_BYTES, grown
    assert not answer.differs(await call(tiny_target.url, question.written(stream=False)))
