"""Streams that are aborted, of every kind: the server holds what it held before, and not more.

What it holds is read from /proc, /dev/shm, the allocators and the queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

import pytest

from account import FILES_SLACK
from caller import Heard, Manners, call
from cases import image
from questions import SPOKEN, Answer, Question, answers, endless
from target import Target, until
from traces import Holdings, holdings

AT_ONCE: Final = 8
ABORTED: Final = "omni_aborts_total"
LENT: Final = "omni_relay_bytes_lent"
SLOTS: Final = "omni_relay_slots_used"
LAST: Final = next(question for question in SPOKEN if question.name == "speech audio_image")
PICTURE_BYTES: Final = 32 * 1024
"""At least, as the patches of a picture: more than travels within a message."""
RELEASED_S: Final = 20.0
SLOTS_SLACK: Final = 4
"""Of work that a loop may hold until the next; each aborted picture takes one or more."""
SEGMENT_SLACK_BYTES: Final = 16 * 2**20
"""Of a pool: slots that were never used before, since fewer were needed at once."""
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
_LONG: Final = endless(spoken=False)
_SEEN: Final = [image(seed=1), {"type": "text", "text": "Tell me everything."}]
PICTURE: Final = Question(
    name="endless text on a picture",
    body=_LONG.body | {"messages": [{"role": "user", "content": _SEEN}]},
    visits=_LONG.visits,
)
_SHORT: Final = {"max_tokens": 4, "min_tokens": 4}
BRIEF: Final = Question(
    name="brief speech",
    body=SPEECH.body | _SHORT | {"stage_params": {"talker_ar": _SHORT}},
    visits=SPEECH.visits,
)
KINDS: Final = {
    "before prefill": Kind(
        question=SPEECH,
        manners=Manners(leave_when_sent=True),
        reached=lambda heard: heard.status == 0 and not heard.text,
    ),
    "mid text": Kind(
        question=PICTURE,
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


async def settle(target: Target, answer: Answer) -> None:
    """Until the server holds nothing of any request; it still answers, through every stage.

    A loop holds its last piece of work until the next, so that is always one of the same question.
    """
    await asyncio.to_thread(until, lambda: not busy(target), RELEASED_S, "all is released")
    assert not answer.differs(await call(target.url, LAST.written(stream=False)))
    await asyncio.to_thread(until, lambda: not busy(target), RELEASED_S, "the last one too")


def grown(before: Holdings, now: Holdings) -> dict[str, int]:
    """What is there beyond what was, and beyond what may come and go."""
    more = {
        "processes": len(set(before.processes.items()) ^ set(now.processes.items())),
        "segments": now.segments - before.segments,
        "segment bytes": now.segment_bytes - before.segment_bytes - SEGMENT_SLACK_BYTES,
    }
    for name in before.processes.keys() & now.processes.keys():
        files = now.open_files[name] - before.open_files[name]
        resident = now.resident_bytes[name] - before.resident_bytes[name]
        more[f"files of {name}"] = files - FILES_SLACK
        more[f"memory of {name}"] = resident - GROWTH_BYTES
    return {name: by for name, by in more.items() if by > 0}


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.matrix)])
async def test_aborted_streams_leave_nothing(tiny_target: Target, count: int) -> None:
    [answer] = (await answers(tiny_target.url, [LAST])).values()
    await abort(tiny_target, 30)
    await settle(tiny_target, answer)
    before, slots = holdings(tiny_target.pid), tiny_target.counter(SLOTS)
    aborted, lent = (tiny_target.counter(name) for name in (ABORTED, LENT))
    await abort(tiny_target, count)
    assert tiny_target.counter(ABORTED) - aborted >= count // 2
    assert tiny_target.counter(LENT) - lent > count // len(KINDS) * PICTURE_BYTES
    await settle(tiny_target, answer)
    await asyncio.to_thread(
        until,
        lambda: tiny_target.counter(SLOTS) <= slots + SLOTS_SLACK,
        RELEASED_S,
        "slots are free",
    )
    with suppress(AssertionError):  # what a client had may still be closing; below is said what
        until(lambda: not grown(before, holdings(tiny_target.pid)), RELEASED_S, "all is as before")
    assert grown(before, holdings(tiny_target.pid)) == {}
