"""What a pipeline answers in this process: the reference for what clients get of a server.

Knows the Python API. Knows no HTTP, codec or format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omni_core.pipeline import Pipeline
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    FloatArray,
    Message,
    Request,
    RequestParams,
    TextDelta,
    TextPart,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One reply."""

    text: str
    samples: FloatArray
    """(n,) at the model's rate."""
    rates: frozenset[int]
    """In Hz, that the samples were said to have."""
    finished: Finished


def answers(checkpoint: str, requests: Sequence[Request]) -> list[Told]:
    """The replies of the default variant, each alone; fp32 on the CPU."""

    async def ask() -> list[Told]:
        async with Pipeline.load(
            checkpoint, device="cpu", dtype="float32", compile="off"
        ) as pipeline:
            return [told([e async for e in pipeline.generate(one)]) for one in requests]

    return asyncio.run(ask())


def told(events: list[Event]) -> Told:
    """Events put together."""
    sounds = [event for event in events if isinstance(event, AudioDelta)]
    [finished] = [event for event in events if isinstance(event, Finished)]
    return Told(
        text="".join(event.text for event in events if isinstance(event, TextDelta)),
        samples=np.concatenate([np.zeros(0, "f4"), *[sound.samples for sound in sounds]]),
        rates=frozenset(sound.sample_rate for sound in sounds),
        finished=finished,
    )


def question(words: str, params: RequestParams) -> Request:
    """A user's words as a request."""
    return Request(messages=(Message(role="user", content=(TextPart(text=words),)),), params=params)
