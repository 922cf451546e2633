"""`python bench/load.py PLAN`: some streams of requests to one server, in a process of its own.

PLAN is a `Plan` as JSON, and so are the replies on stdout: for each stream, a `Heard` for each of
its requests. A stream sends its next request when the last has ended, until the time is up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from client import Heard, ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send where."""

    url: str
    model: str
    kind: Literal["text", "speech"]
    streams: int
    seconds: float
    """No stream begins another request after this; each sends one in any case."""
    text_tokens: int
    frames: int
    first_prompt: int
    """Number of the first prompt; no two requests with different numbers ask the same."""


def body_of(plan: Plan, number: int) -> dict[str, Any]:
    """A greedy request of fixed length, written for our API and for the public peer's at once:
    either ignores the fields of the other."""
    body: dict[str, Any] = {
        "model": plan.model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"Story {number}: what did the fox say?"},
        ],
        "max_tokens": plan.text_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.kind == "speech":
        body |= {
            "modalities": ["text", "audio"],
            "stage_params": {"talker_ar": {"temperature": 0, "max_tokens": plan.frames}},
            "talker_temperature": 0.0,
            "talker_max_new_tokens": plan.frames,
        }
    return body


async def stream(plan: Plan, first: int, until: float) -> list[Heard]:
    """One request after the other."""
    heard: list[Heard] = []
    number = first
    while not heard or time.perf_counter() < until:
        heard.append(await ask(plan.url, body_of(plan, number)))
        number += plan.streams
    return heard


async def run(plan: Plan) -> list[list[Heard]]:
    """All streams at once: {stream: its replies}."""
    until = time.perf_counter() + plan.seconds
    firsts = range(plan.first_prompt, plan.first_prompt + plan.streams)
    return await asyncio.gather(*(stream(plan, first, until) for first in firsts))


def main(plan: str) -> None:
    """Drive one server and print what was heard, by stream."""
    heard = asyncio.run(run(Plan(**json.loads(plan))))
    print(json.dumps([[asdict(reply) for reply in replies] for replies in heard]))


if __name__ == "__main__":
    main(sys.argv[1])
