"""How long people wait for the first word while steps are compiled, beside a server that compiles
nothing.

The two servers take turns, each alone on the machine. The one that compiles begins every turn with
an empty cache, so it compiles for as long as it is asked.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import urllib.request
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final, Literal

from checkpoint import build_endless
from client import Heard
from omni_core.steps.aoti import CACHE_VARIABLE
from results import Case, Report
from servers import omni_server
from speech import Target

GOAL: Final = 0.5
"""Less than twice as long."""
COMPILED: Final = re.compile(r"^[^#].*steps_compiled_here\S* (\S+)$", re.MULTILINE)

Mode = Literal["off", "background"]
MODES: Final[tuple[Mode, ...]] = ("off", "background")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=45.0, help="of each load (default 45)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each server (default 1)")
    parser.add_argument("--tokens", type=int, default=48, help="text tokens of a reply (48)")
    parser.add_argument("--frames", type=int, default=100, help="audio frames of a reply (100)")


def measure(options: argparse.Namespace) -> Report:
    """Turn by turn, every load."""
    heard: dict[tuple[Mode, int], list[Heard]] = defaultdict(list)
    compiled = 0.0
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        for number in range(options.rounds):
            os.environ[CACHE_VARIABLE] = str(Path(workshop, f"cache {number}"))
            for mode in MODES:
                with omni_server(checkpoint, "--compile", mode) as server:
                    target = Target(mode, server.url)
                    target.drive("speech", 1, options, warm_up=True)
                    for streams in options.streams:
                        replies = target.drive("speech", streams, options, warm_up=False)
                        heard[mode, streams] += [reply for one in replies for reply in one]
                    compiled += _compiled(server.url)
    cases = [case for streams in options.streams for case in _cases(heard, streams)]
    return Report(cases=tuple(cases), notes=f"{compiled:.0f} steps were compiled meanwhile")


def _compiled(url: str) -> float:
    """Steps that all stages of a server have compiled, by its metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        return sum(map(float, COMPILED.findall(reply.read().decode())))


def _cases(heard: dict[tuple[Mode, int], list[Heard]], streams: int) -> list[Case]:
    label = "1 stream" if streams == 1 else f"{streams} streams"
    return [
        Case(
            case=f"{name} while compiling, {label}",
            unit="ms",
            ours=_median_ms(heard["background", streams], field),
            other=_median_ms(heard["off", streams], field),
            other_name="compiling nothing",
            goal=goal,
            better="less",
        )
        for name, field, goal in (
            ("first text", "first_text_s", GOAL),
            ("first audio", "first_audio_s", None),
        )
    ]


def _median_ms(replies: list[Heard], moment: str) -> float:
    return median(getattr(reply, moment) for reply in replies) * 1e3
