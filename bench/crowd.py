"""Fifty chats and fifty readings at once, streamed by one server: who waits how long for what.

All ask for replies of one length, which is checked, so that a fair server begins and ends them at
about one time; all but the very first, which may be over before the others are taken up. The
clients share the machine with the server; first bytes are those that a caller hears.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from checkpoint import build_endless
from client import pieces
from results import Case, Report
from servers import omni_server

Kind = Literal["chat", "speech"]
KINDS: Final[tuple[Kind, ...]] = ("chat", "speech")
PATHS: Final[dict[Kind, str]] = {"chat": "/v1/chat/completions", "speech": "/v1/audio/speech"}
TOKENS: Final = 48
FRAMES: Final = 24
WHOLE: Final = ("length", TOKENS, True)
"""What `chat_end` gives of each chat."""
FAIR_END: Final = 2.0
"""The last of a kind ends within so many times the median."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--each", type=int, default=50, help="requests of each kind (default 50)")


def measure(options: argparse.Namespace) -> Report:
    """One crowd, after one of two to warm up."""
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        with omni_server(checkpoint, "--compile", "off") as server:
            asyncio.run(crowd(server.url, 2))
            served = asyncio.run(crowd(server.url, options.each))
    cases = [case for kind in KINDS for case in _cases(kind, served[kind])]
    return Report(cases=tuple(cases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One reply, in seconds since all were asked for."""

    first_s: float
    end_s: float
    silence_s: float
    """The longest between two pieces."""
    size_bytes: int


async def crowd(url: str, each: int) -> dict[Kind, list[Served]]:
    """So many of each kind at once; RuntimeError if one of them is refused, cut, or a chat of
    another length than was asked for."""
    began = time.perf_counter()
    replies = await asyncio.gather(
        *(_serve(url, kind, number, began) for number in range(each) for kind in KINDS)
    )
    return {kind: replies[place :: len(KINDS)] for place, kind in enumerate(KINDS)}


async def _serve(url: str, kind: Kind, number: int, began: float) -> Served:
    times, reply = [], bytearray()
    async for piece in pieces(url, PATHS[kind], json.dumps(_body(kind, number)).encode()):
        times.append(time.perf_counter() - began)
        reply += piece
    if kind == "chat" and (said := chat_end(bytes(reply))) != WHOLE:
        ended = f"chat {number}, which ended after {times[-1]:.2f} s,"
        raise RuntimeError(f"{ended} has {said}, not {WHOLE}: {bytes(reply)!r}")
    silences = [later - sooner for sooner, later in pairwise(times)]
    return Served(
        first_s=times[0],
        end_s=times[-1],
        silence_s=max(silences, default=0.0),
        size_bytes=len(reply),
    )


def chat_end(stream: bytes) -> tuple[str | None, int, bool]:
    """(finish reason, completion tokens by its usage, whether it said that it was over)."""
    *events, rest = stream.split(b"\n\n")
    data = [event.removeprefix(b"data: ") for event in events]
    chunks = [json.loads(event) for event in data if event != b"[DONE]"]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    tokens = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
    done = data[-1:] == [b"[DONE]"] and not rest
    return next(filter(None, reasons), None), sum(tokens), done


def _body(kind: Kind, number: int) -> dict[str, Any]:
    question = f"Story {number}: what did the fox say?"
    if kind == "chat":
        messages = [{"role": "user", "content": question}]
        asked = {"temperature": 0, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}
        return {"messages": messages, "stream": True, **asked}
    talker = {"temperature": 0, "max_tokens": FRAMES}
    return {"input": question, "response_format": "pcm", "stage_params": {"talker_ar": talker}}


def _cases(kind: Kind, served: Sequence[Served]) -> list[Case]:
    ends = [reply.end_s for reply in served]
    last = Case(
        case=f"{kind}: last end, times the median",
        unit="",
        ours=max(ends) / median(ends),
        goal=FAIR_END,
        better="less",
    )
    return [
        _spread(f"{kind}: first byte", [reply.first_s for reply in served]),
        _spread(f"{kind}: end", ends),
        _spread(f"{kind}: longest silence", [reply.silence_s for reply in served]),
        last,
    ]


def _spread(case: str, seconds: Sequence[float]) -> Case:
    """The median, from the first to the last of the crowd."""
    return Case(
        case=case,
        unit="s",
        ours=median(seconds),
        low=min(seconds),
        high=max(seconds),
        better="less",
    )
