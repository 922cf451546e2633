"""What comes again: prefixes, media, whole requests; beside a pipeline whose caches are off."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from checkpoint import build_endless
from omni_core.pipeline import Pipeline
from omni_core.types import (
    Finished,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextPart,
)
from pictures import noise_png
from processes import pss_bytes
from results import Case, Report

OFF: Final = {
    "thinker.prefix_cache": "false",
    "image_encoder.cache_entries": "0",
    "audio_encoder.cache_entries": "0",
}
OTHER: Final = "caches off"
INSTRUCTIONS: Final = "Answer as the fox would, and say only what a fox could know. " * 20
PIXELS: Final = 448


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Two requests, of which the second shares something with the first."""

    name: str
    same_picture: bool
    same_question: bool
    tokens_goal: float
    """Least share of the second prompt that the prefix cache must have."""
    pictures_goal: float | None
    """The same of its pictures in the encoder's cache."""


SCENARIOS: Final = (
    Scenario(
        name="same prefix, other picture",
        same_picture=False,
        same_question=True,
        tokens_goal=0.3,
        pictures_goal=None,
    ),
    Scenario(
        name="same picture, other question",
        same_picture=True,
        same_question=False,
        tokens_goal=0.8,
        pictures_goal=1.0,
    ),
    Scenario(
        name="same request again",
        same_picture=True,
        same_question=True,
        tokens_goal=0.9,
        pictures_goal=1.0,
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many (default 5)")


def measure(options: argparse.Namespace) -> Report:
    """Each scenario on both pipelines in turn, round by round."""
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        return Report(cases=tuple(asyncio.run(_measure(checkpoint, options.rounds))))


async def _measure(checkpoint: str, rounds: int) -> list[Case]:
    async with AsyncExitStack() as opened:
        askers = [
            Asker(
                await opened.enter_async_context(
                    Pipeline.load(checkpoint, device="cpu", compile="off", overrides=overrides)
                )
            )
            for overrides in ({}, OFF)
        ]
        on, off = askers
        found: list[Case] = []
        for scenario in SCENARIOS:
            seen = [(await on.twice(scenario), await off.twice(scenario)) for _ in range(rounds)]
            found += _cases(scenario, [ours for ours, _ in seen], [other for _, other in seen])
        memory = [asker.memory_mb() for asker in askers]
    found.append(
        Case(
            case="memory (PSS) of the stages, after all this",
            unit="MB",
            ours=memory[0],
            other=memory[1],
            other_name=OTHER,
            better="less",
        )
    )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """What the second request of a scenario found and took."""

    tokens_share: float
    pictures_share: float
    prepared_ms: float
    """From its submission until the Thinker had it."""
    thought_ms: float
    """From there to the first token."""


def _cases(scenario: Scenario, ours: Sequence[Second], other: Sequence[Second]) -> list[Case]:
    found = [
        Case(
            case=f"{scenario.name}: prompt found in the prefix cache",
            unit="share",
            ours=median(second.tokens_share for second in ours),
            goal=scenario.tokens_goal,
        ),
        Case(
            case=f"{scenario.name}: pictures found in the encoder's cache",
            unit="share",
            ours=median(second.pictures_share for second in ours),
            goal=scenario.pictures_goal,
        ),
    ]
    parts = {
        "preparation": ([s.prepared_ms for s in ours], [s.prepared_ms for s in other]),
        "prefill": ([s.thought_ms for s in ours], [s.thought_ms for s in other]),
    }
    return found + [
        Case(
            case=f"{scenario.name}: {part}",
            unit="ms",
            ours=median(mine),
            other=median(others),
            other_name=OTHER,
            better="less",
        )
        for part, (mine, others) in parts.items()
    ]


class Asker:
    """Asks a pipeline about pictures of noise."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._random = np.random.default_rng(0)
        self._asked = 0

    async def twice(self, scenario: Scenario) -> Second:
        """Two requests after each other; what the second one met."""
        picture, question = self._picture(), self._question()
        await self._ask(picture, question)
        before = await self._pipeline.stats()
        finished = await self._ask(
            picture if scenario.same_picture else self._picture(),
            question if scenario.same_question else self._question(),
        )
        after = await self._pipeline.stats()

        def grown(stage: str, name: str) -> float:
            return after[stage][name] - before[stage][name]

        pictures = grown("image_encoder", "cache_hits") + grown("image_encoder", "cache_misses")
        spans = {span.stage: span for span in finished.timeline}
        thinker = spans["thinker"]
        assert thinker.first_output_s is not None
        return Second(
            tokens_share=grown("thinker", "prefix_hit_tokens") / grown("thinker", "prompt_tokens"),
            pictures_share=grown("image_encoder", "cache_hits") / max(pictures, 1),
            prepared_ms=thinker.start_s * 1e3,
            thought_ms=(thinker.first_output_s - thinker.start_s) * 1e3,
        )

    def memory_mb(self) -> float:
        """Proportional set size of the processes of the pipeline's stages."""
        stages = self._pipeline.health().stages.values()
        return sum(pss_bytes(pid)["total"] for pid in {stage.pid for stage in stages}) / 1e6

    async def _ask(self, picture: bytes, question: str) -> Finished:
        request = Request(
            messages=(
                Message(role="system", content=(TextPart(text=INSTRUCTIONS),)),
                Message(
                    role="user",
                    content=(MediaPart(kind="image", data=picture), TextPart(text=question)),
                ),
            ),
            params=RequestParams(sampling=SamplingParams(temperature=0.0, max_tokens=4)),
        )
        async for event in self._pipeline.generate(request):
            if isinstance(event, Finished):
                return event
        raise AssertionError("a request always ends with Finished")

    def _question(self) -> str:
        self._asked += 1
        return f"{self._asked} foxes: what do you see?"

    def _picture(self) -> bytes:
        return noise_png(self._random, PIXELS)
