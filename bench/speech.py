"""Streamed speech and text over HTTP, from several callers at once, beside another server.

The other server (`--peer-url`) must serve the same checkpoint through OpenAI's chat completions. It
and ours take turns, driven by the same client in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Literal

from checkpoint import build_endless
from client import Heard
from load import Plan
from omni_qwen3.code2wav.config import Code2WavConfig, load_config
from results import Case, Report
from servers import omni_server

Kind = Literal["speech", "text"]
KINDS: Final[tuple[Kind, ...]] = ("speech", "text")
PEER: Final = "the peer"
LOAD: Final = Path(__file__).with_name("load.py")
PROMPTS_PER_LOAD: Final = 10_000

FRAMES_GOALS: Final = {"off": {1: 3.0, 8: 2.5}, "wait": {1: 7.0, 8: 5.0}}
"""By --compile and streams. Background is judged by none: it may be either."""
FIRST_AUDIO_GOALS: Final = {1: 8.0, 8: 5.0}
TEXT_GOALS: Final = {1: 3.0, 8: 4.0}
STEADY_FRAMES: Final = 3
CROWD: Final = 8
CROWD_GOAL: Final = 1 / 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--peer-url", help="another server, as http://127.0.0.1:PORT")
    parser.add_argument("--compile", choices=("off", "background", "wait"), default="off")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="a load begins no request after this (8)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="loads of each kind (default 2)")
    parser.add_argument("--tokens", type=int, default=48, help="text tokens of a reply (48)")
    parser.add_argument("--frames", type=int, default=100, help="audio frames of a reply (100)")


def measure(options: argparse.Namespace) -> Report:
    """Every load on each server in turn, round by round, after one of each to warm up."""
    loads: dict[tuple[str, Kind, int], Loads] = defaultdict(Loads)
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        vocoder = load_config(checkpoint)
        with omni_server(checkpoint, "--compile", options.compile) as server:
            targets = [Target("ours", server.url)]
            if options.peer_url:
                targets.append(Target(PEER, options.peer_url))
            for number in range(options.rounds + 1):
                for streams in options.streams:
                    for kind in KINDS:
                        for target in targets:
                            heard = target.drive(kind, streams, options, warm_up=number == 0)
                            if number:
                                loads[target.name, kind, streams].add(heard)
    return Report(cases=tuple(cases(loads, vocoder, options)))


@dataclass(slots=True)
class Target:
    """A server to drive."""

    name: str
    url: str
    model: str = ""
    loads: int = 0

    def __post_init__(self) -> None:
        with urllib.request.urlopen(f"{self.url}/v1/models") as reply:
            self.model = json.load(reply)["data"][0]["id"]

    def drive(
        self, kind: Kind, streams: int, options: argparse.Namespace, *, warm_up: bool
    ) -> list[list[Heard]]:
        """One load; every load of a server asks other questions, and all servers the same."""
        plan = Plan(
            url=self.url,
            model=self.model,
            kind=kind,
            streams=streams,
            seconds=0.0 if warm_up else options.seconds,
            text_tokens=options.tokens,
            frames=options.frames,
            first_prompt=self.loads * PROMPTS_PER_LOAD,
        )
        self.loads += 1
        command = [sys.executable, str(LOAD), json.dumps(asdict(plan))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return [[Heard(**reply) for reply in replies] for replies in json.loads(done.stdout)]


@dataclass(slots=True)
class Loads:
    """What came of loads of one kind on one server."""

    replies: list[Heard] = field(default_factory=list)
    _rounds: list[list[list[Heard]]] = field(default_factory=list)

    def add(self, heard: list[list[Heard]]) -> None:
        """One more round, by stream."""
        self._rounds.append(heard)
        self.replies += [reply for replies in heard for reply in replies]

    def per_s(self, amount: Callable[[Heard], float]) -> float:
        """Of all streams together, the median round."""
        return median(sum(_rate(replies, amount) for replies in heard) for heard in self._rounds)

    def median_s(self, moment: Callable[[Heard], float | None]) -> float:
        """The median over all replies; a reply without it never gets there."""
        found = (moment(reply) for reply in self.replies)
        return median(float("inf") if value is None else value for value in found)


def _rate(replies: Sequence[Heard], amount: Callable[[Heard], float]) -> float:
    """Per second of a stream, whose replies follow each other."""
    return sum(map(amount, replies)) / sum(reply.end_s for reply in replies)


def cases(
    loads: dict[tuple[str, Kind, int], Loads],
    vocoder: Code2WavConfig,
    options: argparse.Namespace,
) -> list[Case]:
    """All rows; those beside the peer are skipped where it was not driven."""

    def frames_per_s(one: Loads) -> float:
        return one.per_s(lambda reply: _frames(reply, vocoder))

    both = Both(loads)
    found: list[Case] = []
    for streams in options.streams:
        goal = FRAMES_GOALS.get(options.compile, {}).get(streams)
        first_audio = FIRST_AUDIO_GOALS.get(streams)
        text = TEXT_GOALS.get(streams)
        found += [
            both.case("speech", "frames/s", frames_per_s, "speech", streams, goal),
            both.case("first audio", "ms", _first_audio_ms, "speech", streams, first_audio),
            both.case("first text of speech", "ms", _first_text_ms, "speech", streams, None),
            both.case("text", "tokens/s", _tokens_per_s, "text", streams, text),
            both.case("first text", "ms", _first_text_ms, "text", streams, None),
        ]
    ours = {streams: loads["ours", "speech", streams] for streams in options.streams}
    return found + _alone(ours, vocoder)


@dataclass(frozen=True, slots=True)
class Both:
    """Our loads and the peer's, as far as it was driven."""

    loads: dict[tuple[str, Kind, int], Loads]

    def case(
        self,
        name: str,
        unit: str,
        number: Callable[[Loads], float],
        kind: Kind,
        streams: int,
        goal: float | None,
    ) -> Case:
        """One number of the loads of a kind; fewer are better where it is a time."""
        other = self.loads.get((PEER, kind, streams))
        return Case(
            case=f"{name}, {_streams(streams)}",
            unit=unit,
            ours=number(self.loads["ours", kind, streams]),
            other=number(other) if other else None,
            other_name=PEER,
            goal=goal,
            better="less" if unit == "ms" else "more",
        )


def _alone(ours: dict[int, Loads], vocoder: Code2WavConfig) -> list[Case]:
    """What is asked of ours without regard to others."""
    found = []
    if one := ours.get(1):
        frame_s = one.median_s(lambda reply: _steady_frame_s(reply, vocoder))
        found.append(
            Case(
                case="first audio soon after first text, 1 stream",
                unit="ms",
                ours=_first_audio_ms(one),
                other=_first_text_ms(one) + STEADY_FRAMES * frame_s * 1e3,
                other_name=f"first text + {STEADY_FRAMES} steady frames",
                goal=1.0,
                better="less",
            )
        )
    if one and (crowd := ours.get(CROWD)):
        found.append(
            Case(
                case=f"first audio in a crowd, {_streams(CROWD)}",
                unit="ms",
                ours=_first_audio_ms(crowd),
                other=_first_audio_ms(one),
                other_name="1 stream",
                goal=CROWD_GOAL,
                better="less",
            )
        )
    return found


def _frames(reply: Heard, vocoder: Code2WavConfig) -> float:
    """Frames behind the samples of a reply."""
    heard = reply.samples + vocoder.lookahead_samples if reply.samples else 0
    return heard / vocoder.samples_per_frame


def _steady_frame_s(reply: Heard, vocoder: Code2WavConfig) -> float | None:
    """Seconds per frame once the first piece of audio is there."""
    if reply.last_audio_s is None or reply.first_audio_s is None:
        return None
    later = (reply.samples - reply.first_samples) / vocoder.samples_per_frame
    return (reply.last_audio_s - reply.first_audio_s) / later


def _first_audio_ms(loads: Loads) -> float:
    return loads.median_s(lambda reply: reply.first_audio_s) * 1e3


def _first_text_ms(loads: Loads) -> float:
    return loads.median_s(lambda reply: reply.first_text_s) * 1e3


def _tokens_per_s(loads: Loads) -> float:
    return loads.per_s(lambda reply: reply.text_tokens)


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
