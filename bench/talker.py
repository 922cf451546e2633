"""Speech without HTTP: the Talker stage alone and the whole pipeline, beside transformers."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

import stages
from checkpoint import build_endless
from omni_core.pipeline import Pipeline
from omni_core.scheduler.base import Chunk, ChunksDone, Scheduler, Work
from omni_core.types import (
    AudioDelta,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from omni_qwen3.code2wav.config import load_config as vocoder_config
from omni_qwen3.config import load_config
from results import Case, Report

IN_FLIGHT: Final = 16
CROWD: Final = 8
CROWD_GOAL: Final = 1 / 3
STEADY_FRAMES: Final = 3
REPLIES_EACH: Final = 3
"""Of those in flight: one wave alone would mostly measure how a wave begins and ends."""
USER_TOKENS: Final = 20
GOALS: Final = {"off": 3.0, "wait": 7.0}
LABELS: Final = {"off": "eager", "wait": "compiled"}
COMPILED_SHARE_GOAL: Final = 0.9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--tokens", type=int, default=48, help="text tokens of a reply (48)")
    parser.add_argument("--frames", type=int, default=100, help="audio frames of a reply (100)")
    parser.add_argument("--rounds", type=int, default=3, help="medians are of so many (default 3)")
    parser.add_argument(
        "--compile",
        nargs="+",
        choices=tuple(GOALS),
        default=["off", "wait"],
        help="off: eager steps; wait: compiled before the first request (both by default)",
    )


def measure(options: argparse.Namespace) -> Report:
    """Ours and transformers' in turn, round by round."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        return asyncio.run(_measure(options, checkpoint))


async def _measure(options: argparse.Namespace, checkpoint: str) -> Report:
    from hf import NAME, Transformers

    other = Transformers.load(checkpoint)
    reply = Reply(checkpoint, options.tokens, options.frames)
    alone = {
        mode: stages.build(stages.context(checkpoint, "talker_ar", compile=mode))
        for mode in options.compile
    }
    async with AsyncExitStack() as opened:
        pipelines = {
            mode: await opened.enter_async_context(
                Pipeline.load(checkpoint, device="cpu", compile=mode)
            )
            for mode in options.compile
        }
        rounds = [await _round(reply, alone, pipelines, other) for _ in range(options.rounds + 1)][
            1:
        ]  # the first one warms up
        shares = {mode: _compiled_share(await p.stats()) for mode, p in pipelines.items()}
    cases = [case for mode in options.compile for case in _cases(mode, rounds, NAME)]
    if "wait" in shares:
        cases.append(
            Case(
                case="step calls that ran compiled, of a pipeline that waited for them",
                unit="share",
                ours=shares["wait"],
                goal=COMPILED_SHARE_GOAL,
            )
        )
    return Report(cases=tuple(cases))


async def _round(
    reply: Reply, alone: dict[str, Scheduler], pipelines: dict[str, Pipeline], other: Any
) -> dict[str, float]:
    """Frames per second of everything, once."""
    spoken = other.speech(other.prompt(reply.text()), reply.tokens, reply.frames)
    assert spoken.frames == reply.frames
    found = {
        "other": spoken.frames / spoken.end_s,
        "other talker": spoken.frames / spoken.talker_s,
    }
    for mode, scheduler in alone.items():
        found[f"stage {mode}"] = reply.frames / reply.speak(scheduler)
    for mode, pipeline in pipelines.items():
        found[f"one {mode}"] = await reply.frames_per_s(pipeline, 1)
        found |= await _firsts(reply, mode, pipeline)
        found[f"many {mode}"] = await reply.frames_per_s(pipeline, IN_FLIGHT, REPLIES_EACH)
    return found


async def _firsts(reply: Reply, mode: str, pipeline: Pipeline) -> dict[str, float]:
    """Milliseconds to the first of text and audio, of a request alone and of those that come
    together."""
    alone = [await reply.hear(pipeline) for _ in range(CROWD)]
    crowd = await asyncio.gather(*(reply.hear(pipeline) for _ in range(CROWD)))
    return {
        f"text {mode}": median(heard.first_text_s for heard in alone) * 1e3,
        f"audio {mode}": median(heard.first_audio_s for heard in alone) * 1e3,
        f"frame {mode}": median(heard.steady_frame_s for heard in alone) * 1e3,
        f"crowd {mode}": median(heard.first_audio_s for heard in crowd) * 1e3,
    }


def _cases(mode: str, rounds: Sequence[dict[str, float]], other_name: str) -> tuple[Case, ...]:
    middle = {name: median(found[name] for found in rounds) for name in rounds[0]}
    label = LABELS[mode]
    return (
        Case(
            case=f"Talker stage alone, 1 request, {label}",
            unit="frames/s",
            ours=middle[f"stage {mode}"],
            other=middle["other talker"],
            other_name=f"{other_name}, its Talker's part",
        ),
        Case(
            case=f"pipeline, 1 request, {label}",
            unit="frames/s",
            ours=middle[f"one {mode}"],
            other=middle["other"],
            other_name=other_name,
            goal=GOALS[mode],
        ),
        Case(
            case=f"pipeline, {IN_FLIGHT} in flight, {label}",
            unit="frames/s",
            ours=middle[f"many {mode}"],
            other=middle["other"],
            other_name=f"{other_name}, one after another",
            goal=30.0,
        ),
        Case(
            case=f"first audio soon after first text, 1 request, {label}",
            unit="ms",
            ours=middle[f"audio {mode}"],
            other=middle[f"text {mode}"] + STEADY_FRAMES * middle[f"frame {mode}"],
            other_name=f"first text + {STEADY_FRAMES} steady frames",
            goal=1.0,
            better="less",
        ),
        Case(
            case=f"first audio in a crowd, {CROWD} at once, {label}",
            unit="ms",
            ours=middle[f"crowd {mode}"],
            other=middle[f"audio {mode}"],
            other_name="1 request",
            goal=CROWD_GOAL,
            better="less",
        ),
    )


def _compiled_share(stats: dict[str, dict[str, float]]) -> float:
    """Of the calls of steps that have a compiled form, those that ran it; 0 if there are none."""
    counts = {
        name: sum(stage.get(f"step_calls_{name}", 0.0) for stage in stats.values())
        for name in ("eager", "compiled", "graph")
    }
    return 1 - counts["eager"] / max(sum(counts.values()), 1.0) if counts["compiled"] else 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A whole reply of a pipeline."""

    frames: int
    first_text_s: float
    first_audio_s: float
    steady_frame_s: float
    """For each frame after the first piece of audio."""


@dataclass(slots=True)
class Reply:
    """A greedy spoken reply of fixed length, asked for as a stage, a pipeline or a person would."""

    checkpoint: str
    tokens: int
    frames: int
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    asked: int = 0

    def text(self) -> str:
        """What the user says, something else each time."""
        self.asked += 1
        return f"Story {self.asked}: what did the fox say?"

    @property
    def talker_sampling(self) -> SamplingParams:
        """Of the Talker; its last code never becomes a frame."""
        return SamplingParams(temperature=0.0, max_tokens=self.frames + 1)

    def speak(self, scheduler: Scheduler) -> float:
        """Seconds in which the Talker's stage alone makes the frames, from rows of noise."""
        with stages.running(scheduler) as (inbox, listener):
            began = time.perf_counter()
            inbox.put(Work("reply", self._params(), self._conditioning()))
            for _ in range(self.tokens - 1):  # the last is never spoken
                inbox.put(Chunk("reply", "thinker", {"rows": self._rows(1)}))
            inbox.put(ChunksDone("reply", "thinker"))
            listener.wait_for_ends(1)
            assert len(listener.events) == self.frames
            return listener.events[-1][0] - began

    async def frames_per_s(self, pipeline: Pipeline, in_flight: int, each: int = 1) -> float:
        """Of a pipeline that so many people ask at once, each so often, one reply after another."""

        async def person() -> list[int]:
            return [(await self.hear(pipeline)).frames for _ in range(each)]

        began = time.perf_counter()
        made = await asyncio.gather(*(person() for _ in range(in_flight)))
        seconds = time.perf_counter() - began
        assert {frames for replies in made for frames in replies} == {self.frames}
        return sum(map(sum, made)) / seconds

    async def hear(self, pipeline: Pipeline) -> Heard:
        """Ask for a reply and listen to its end."""
        vocoder = vocoder_config(self.checkpoint)
        asked = Message(role="user", content=(TextPart(text=self.text()),))
        request = Request(messages=(asked,), params=self._params())
        began, text_s, pieces = time.perf_counter(), [], []
        async for event in pipeline.generate(request):
            match event:
                case TextDelta():
                    text_s.append(time.perf_counter() - began)
                case AudioDelta():
                    pieces.append((time.perf_counter() - began, event.samples.size))
        (first_s, first_size), (last_s, _) = pieces[0], pieces[-1]
        samples = sum(size for _, size in pieces)
        steady_frames = (samples - first_size) / vocoder.samples_per_frame
        return Heard(
            frames=(samples + vocoder.lookahead_samples) // vocoder.samples_per_frame,
            first_text_s=text_s[0],
            first_audio_s=first_s,
            steady_frame_s=(last_s - first_s) / steady_frames,
        )

    def _params(self) -> RequestParams:
        return RequestParams(
            modalities=("text", "audio"),
            sampling=SamplingParams(temperature=0.0, max_tokens=self.tokens),
            stage_params={"talker_ar": self.talker_sampling},
        )

    def _conditioning(self) -> dict[str, Any]:
        return {
            "speak": True,
            "user_ids": np.arange(USER_TOKENS),
            "user_rows": self._rows(USER_TOKENS),
            "user_is_media": torch.zeros(USER_TOKENS, dtype=torch.bool),
            "assistant_rows": self._rows(3),
        }

    def _rows(self, count: int) -> torch.Tensor:
        """Noise as loud as the tiny Thinker's embeddings, (count, hidden)."""
        width = load_config(self.checkpoint).thinker.decoder.hidden_size
        return 0.5 * torch.randn(count, width, generator=self.random)
