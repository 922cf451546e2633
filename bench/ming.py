"""Ming's speech without HTTP: spoken replies whose text is known, and texts read aloud.

The Thinker recites (see `recital`), so that sentences end where they would. Of the Talker, every
utterance is of one length, but for one so short that its text ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Literal

from client import Heard
from omni_core.pipeline import Pipeline
from omni_core.types import (
    AudioDelta,
    Finished,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from recital import TEXTS, build_reciting, pieces_of
from results import Case, Report

Kind = Literal["reply", "reading"]
TALKER: Final = "talker_stream"
AT_ONCE: Final = f"{TALKER}.utterances_at_once"
CROWD: Final = 8
REPLIES_EACH: Final = 2
"""Of those in flight: one wave alone would mostly measure how a wave begins and ends."""
CROWD_GOAL: Final = 3.0
FLOW_BATCH_GOAL: Final = 4.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--tokens", type=int, nargs="+", default=[60, 240], help="of replies")
    parser.add_argument("--patches", type=int, default=16, help="of an utterance, 0.32 s each (16)")
    parser.add_argument("--rounds", type=int, default=2, help="medians are of so many (default 2)")
    parser.add_argument("--languages", nargs="+", choices=tuple(TEXTS), default=list(TEXTS))
    parser.add_argument("--compile", choices=("off", "wait"), default="off")
    parser.add_argument("--at-once", help="utterances of a request in the engine (the default's)")


def measure(options: argparse.Namespace) -> Report:
    """Language by language, each with a checkpoint of its own."""
    return Report(
        cases=tuple(
            case
            for language in options.languages
            for case in asyncio.run(_measure(language, options))
        )
    )


async def _measure(language: str, options: argparse.Namespace) -> list[Case]:
    pieces = pieces_of(*TEXTS[language])
    told: list[tuple[Kind, int]] = [("reply", tokens) for tokens in options.tokens]
    told.append(("reading", options.tokens[0]))
    loads: dict[tuple[Kind, int, int], Loads] = defaultdict(Loads)
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_reciting(Path(workshop, "reciting"), pieces)
        pipeline = Pipeline.load(
            checkpoint,
            variant="streaming_speech",
            device="cpu",
            compile=options.compile,
            overrides={AT_ONCE: options.at_once} if options.at_once else {},
        )
        async with pipeline:
            asked = Asked(pipeline, pieces, options.patches)
            await asked.load("reply", options.tokens[0], CROWD)  # warms up
            for _ in range(options.rounds):
                for kind, tokens in told:
                    for in_flight in (1, CROWD):
                        load = await asked.load(kind, tokens, in_flight)
                        loads[kind, tokens, in_flight].rounds.append(load)
    return [
        case
        for kind, tokens in told
        for case in _cases(
            kind,
            f"{language} {kind}, {tokens} tokens",
            loads[kind, tokens, 1],
            loads[kind, tokens, CROWD],
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of some in flight at once."""

    replies: tuple[Heard, ...]
    seconds: float
    rate: int
    """Samples in a second of audio."""
    flow_patches: float
    flow_batches: float

    @property
    def audio_s(self) -> float:
        """Heard by all together."""
        return sum(reply.samples for reply in self.replies) / self.rate


@dataclass(slots=True)
class Asked:
    """A pipeline that is asked for replies, or to read what it would reply."""

    pipeline: Pipeline
    pieces: Sequence[str]
    patches: int
    questions: int = 0

    async def load(self, kind: Kind, tokens: int, in_flight: int) -> Load:
        """So many people at once, each one reply after another."""

        async def person() -> list[Heard]:
            return [await self._hear(kind, tokens) for _ in range(REPLIES_EACH)]

        rate = self.pipeline.info.sample_rate
        assert rate is not None
        before, began = (await self.pipeline.stats())[TALKER], time.perf_counter()
        replies = await asyncio.gather(*(person() for _ in range(in_flight)))
        seconds = time.perf_counter() - began
        after = (await self.pipeline.stats())[TALKER]
        return Load(
            replies=tuple(reply for one in replies for reply in one),
            seconds=seconds,
            rate=rate,
            flow_patches=after["flow_patches"] - before["flow_patches"],
            flow_batches=after["flow_batches"] - before["flow_batches"],
        )

    async def _hear(self, kind: Kind, tokens: int) -> Heard:
        """Listen to the end; RuntimeError if it says anything but the text."""
        request, expected = self._request(kind, tokens), "".join(self.pieces[:tokens])
        heard, said, began = Heard(), "", time.perf_counter()
        async for event in self.pipeline.generate(request):
            now_s = time.perf_counter() - began
            match event:
                case TextDelta():
                    heard.first_text_s = heard.first_text_s or now_s
                    heard.last_text_s = now_s
                    said += event.text
                case AudioDelta():
                    heard.first_audio_s = heard.first_audio_s or now_s
                    heard.last_audio_s = now_s
                    heard.samples += event.samples.size
                case Finished():
                    heard.text_tokens = event.usage.text_tokens
        heard.end_s = time.perf_counter() - began
        if kind == "reply" and (said, heard.text_tokens) != (expected, tokens):
            raise RuntimeError(f"the reply is {said!r}, not {tokens} tokens of {expected!r}")
        if heard.first_audio_s is None:
            raise RuntimeError(f"nothing is heard of {expected!r}")
        return heard

    def _request(self, kind: Kind, tokens: int) -> Request:
        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=tokens)
        talker = SamplingParams(temperature=0.0, seed=0, max_tokens=self.patches)
        params = RequestParams(
            modalities=("text", "audio") if kind == "reply" else ("audio",),
            sampling=sampling,
            stage_params={TALKER: talker},
        )
        if kind == "reading":
            return Request(read_aloud="".join(self.pieces[:tokens]), params=params)
        self.questions += 1
        question = TextPart(text=f"Story {self.questions}: what did the fox say?")
        return Request(messages=(Message(role="user", content=(question,)),), params=params)


@dataclass(slots=True)
class Loads:
    """Loads of one kind, round by round."""

    rounds: list[Load] = field(default_factory=list)

    @property
    def replies(self) -> list[Heard]:
        """Of all rounds."""
        return [reply for load in self.rounds for reply in load.replies]

    @property
    def speech_per_s(self) -> float:
        """Seconds of audio in a second, of all in flight together, the median round."""
        return median(load.audio_s / load.seconds for load in self.rounds)

    @property
    def flow_batch(self) -> float:
        """Utterances in a call of the flow."""
        calls = sum(load.flow_batches for load in self.rounds)
        return sum(load.flow_patches for load in self.rounds) / calls

    @property
    def real_time_factors(self) -> list[float]:
        """Of each reply, seconds in which a second of its audio is made."""
        return [r.end_s * load.rate / r.samples for load in self.rounds for r in load.replies]

    def first_audio(self, name: str, kind: Kind) -> list[Case]:
        """When it is heard, beside the end of the text where there is one."""
        times_ms = [reply.first_audio_s * 1e3 for reply in self.replies if reply.first_audio_s]
        if kind == "reading":
            return [_spread(f"{name}: first audio", "ms", times_ms)]
        texts_ms = [reply.last_text_s * 1e3 for reply in self.replies if reply.last_text_s]
        sooner = [audio < text for audio, text in zip(times_ms, texts_ms, strict=True)]
        return [
            Case(
                case=f"{name}: first audio",
                unit="ms",
                ours=median(times_ms),
                low=min(times_ms),
                high=max(times_ms),
                other=median(texts_ms),
                other_name="its last text",
                goal=1.0,
                better="less",
            ),
            Case(
                case=f"{name}: heard before their last text",
                unit="of the replies",
                ours=sum(sooner) / len(sooner),
            ),
        ]


def _cases(kind: Kind, name: str, one: Loads, crowd: Loads) -> Iterator[Case]:
    """All that is told of one text."""
    alone, many = (f"{name}, {count} in flight" for count in (1, CROWD))
    for label, loads in ((alone, one), (many, crowd)):
        yield from loads.first_audio(label, kind)
        yield _spread(f"{label}: real-time factor", "s/s", loads.real_time_factors)
    yield Case(
        case=f"{many}: speech",
        unit="s/s",
        ours=crowd.speech_per_s,
        other=one.speech_per_s,
        other_name="1 in flight",
        goal=CROWD_GOAL,
    )
    yield Case(case=f"{alone}: utterances in a flow batch", unit="", ours=one.flow_batch)
    yield Case(
        case=f"{many}: utterances in a flow batch",
        unit="",
        ours=crowd.flow_batch,
        goal=FLOW_BATCH_GOAL,
    )


def _spread(case: str, unit: str, found: Sequence[float]) -> Case:
    return Case(
        case=case, unit=unit, ours=median(found), low=min(found), high=max(found), better="less"
    )
