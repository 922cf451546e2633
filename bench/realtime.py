"""The realtime socket: how soon a turn is noticed and an interruption takes effect, how many
sessions hold real time, and what an hour of one costs in memory.

Server, scripted pipeline and clients are in this process, and sound comes as clients send it: 20 ms
at a time, at the pace at which it is spoken. A voice of vowels is found by the server's own speech
model. What waits for silence on purpose is not in the numbers: a turn's time counts from when the
sample was sent that completes the silence, and stages that are left before the client reads why are
left after 0 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

import numpy as np
import psutil
from websockets.asyncio.client import ClientConnection, connect

from omni_core.media.encode import pcm16
from omni_core.testing.voice import say_vowels
from omni_core.types import Event, Finished, Request, TextDelta, Usage
from omni_server.app import create_app
from omni_server.http import bind, http_server
from omni_server.settings import Settings
from results import Case, Report
from scripted import Scripted

RATE: Final = 24_000
PIECE: Final = RATE // 50
SILENCE_MS: Final = 500
GOAL_TURN_MS: Final = 20.0
GOAL_INTERRUPT_MS: Final = 100.0
GOAL_CROWD_MS: Final = 100.0
GOAL_GROWTH_MB: Final = 20.0
MB: Final = 1024 * 1024
VOICES: Final = tuple(say_vowels("aeiou", RATE, seed=seed) for seed in range(4))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--turns", type=int, default=10, help="medians are of so many (default 10)")
    parser.add_argument("--sessions", type=int, default=32, help="at once (default 32)")
    parser.add_argument("--hours", type=float, default=1.0, help="of silence and bursts (1)")


def measure(options: argparse.Namespace) -> Report:
    """Every case, one after the other."""
    return Report(cases=tuple(asyncio.run(_measure(options))))


async def _measure(options: argparse.Namespace) -> list[Case]:
    async with _serving() as (pipeline, url):
        turns = await _one_session(url, pipeline, options.turns)
        crowd = await asyncio.gather(
            *(_one_session(url, pipeline, 3, seed) for seed in range(options.sessions))
        )
        everyone = [ms for one in crowd for ms in one.turn_ms]
        growth_mb, speed = await _long_session(url, options.hours * 3_600)
    return [
        _case("end of the silence to the turn's commit", turns.turn_ms, GOAL_TURN_MS),
        _case("speech that interrupts to its event", turns.began_ms, None),
        _case("that event to the stages being left", turns.left_ms, GOAL_INTERRUPT_MS),
        Case(
            case=f"{options.sessions} sessions at once: 95th percentile to the commit",
            unit="ms", ours=quantiles(everyone, n=20)[-1], low=min(everyone), high=max(everyone),
            goal=GOAL_CROWD_MS, better="less",
        ),
        Case(
            case=f"{options.hours:g} h of silence and bursts: growth", unit="MB", ours=growth_mb,
            goal=GOAL_GROWTH_MB, better="less",
        ),
        Case(case="the same: seconds of sound a second", unit="x", ours=speed, goal=50.0),
    ]  # fmt: skip


def _case(what: str, found: list[float], goal: float | None) -> Case:
    return Case(
        case=what, unit="ms", ours=median(found), low=min(found), high=max(found), goal=goal,
        better="less",
    )  # fmt: skip


class Talkative(Scripted):
    """Goes on talking until somebody ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.left_at: asyncio.Queue[float] = asyncio.Queue()

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """See `Pipeline.batches`: ten words a second, and as much sound as they take."""
        try:
            for number in range(request.params.sampling.max_tokens or 10_000):
                await asyncio.sleep(0.1)
                yield [TextDelta(text="word ", token_ids=(number,)), self._sound]
            yield [Finished(finish_reason="stop", usage=Usage(prompt_tokens=9))]
        finally:
            self.left_at.put_nowait(time.perf_counter())


@asynccontextmanager
async def _serving() -> AsyncIterator[tuple[Talkative, str]]:
    pipeline = Talkative()
    listener = bind("127.0.0.1", 0)
    server = http_server(create_app(pipeline, Settings(served_model_name="m")), drain_timeout_s=1)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield pipeline, f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/realtime"
    finally:
        server.should_exit = True
        await answering


@dataclass
class Times:
    """What was measured in one session."""

    turn_ms: list[float] = field(default_factory=list)
    began_ms: list[float] = field(default_factory=list)
    left_ms: list[float] = field(default_factory=list)


class Speaker:
    """A client that speaks at the pace of speech, and knows when it sent each moment."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent_at: list[float] = []
        """Of each piece."""

    async def say(self, samples: Any) -> None:
        """Speak."""
        began = time.perf_counter()
        for number, start in enumerate(range(0, len(samples) - PIECE + 1, PIECE)):
            late_s = began + number * PIECE / RATE - time.perf_counter()
            await asyncio.sleep(max(0.0, late_s))
            await self._socket.send(append(samples[start : start + PIECE]))
            self._sent_at.append(time.perf_counter())

    def since_ms(self, moment_ms: int) -> float:
        """How long ago the moment of the sound was sent, whole."""
        piece = -(-moment_ms * RATE // 1000 // PIECE) - 1
        return (time.perf_counter() - self._sent_at[piece]) * 1e3


def append(samples: Any) -> str:
    """An event of sound."""
    audio = base64.b64encode(pcm16(samples)).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})


async def _one_session(url: str, pipeline: Talkative, turns: int, seed: int = 0) -> Times:
    """Turn after turn, each of which interrupts the answer to the one before."""
    times = Times()
    parts = []
    rng = np.random.default_rng(seed)
    for _ in range(turns):
        quiet = np.zeros(round((1.2 + 0.2 * rng.uniform()) * RATE), np.float32)
        parts += [VOICES[rng.integers(len(VOICES))], quiet]
    async with connect(url, compression=None, max_size=None) as socket:
        await socket.recv()
        speaker = Speaker(socket)
        listening = asyncio.create_task(_listen(socket, speaker, pipeline, times, turns))
        await speaker.say(np.concatenate([np.zeros(RATE, np.float32), *parts]))
        await asyncio.wait_for(listening, 10)
    return times


async def _listen(
    socket: ClientConnection, speaker: Speaker, pipeline: Talkative, times: Times, turns: int
) -> None:
    end_ms, answered = 0, False
    while len(times.turn_ms) < turns:
        event = json.loads(await socket.recv())
        match event["type"]:
            case "input_audio_buffer.speech_started" if answered:
                times.began_ms.append(speaker.since_ms(event["audio_start_ms"] + 300))
                noticed = time.perf_counter()
                left = await asyncio.wait_for(pipeline.left_at.get(), 5)
                times.left_ms.append(max(0.0, left - noticed) * 1e3)
            case "input_audio_buffer.speech_stopped":
                end_ms = event["audio_end_ms"]
            case "input_audio_buffer.committed":
                times.turn_ms.append(speaker.since_ms(end_ms))
            case "response.created":
                answered = True


async def _long_session(url: str, seconds: float) -> tuple[float, float]:
    """(growth of this process in MB, seconds of sound a second): a minute of silence and a burst,
    again and again, as fast as the server takes it."""
    quiet = np.zeros(58 * RATE, np.float32)
    minute = np.concatenate([VOICES[0], np.zeros(RATE, np.float32), quiet])
    events = [append(minute[start : start + RATE]) for start in range(0, len(minute), RATE)]
    settings = {"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 1}
    async with connect(url, compression=None, max_size=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": settings}))
        held, began = 0.0, time.perf_counter()
        for number in range(round(seconds / 60)):
            if number == 3:  # what is loaded once is loaded
                held = psutil.Process().memory_info().rss / MB
            for event in events:
                await socket.send(event)
            await _until_answered(socket)
        took_s = time.perf_counter() - began
        return psutil.Process().memory_info().rss / MB - held, seconds / took_s


async def _until_answered(socket: ClientConnection) -> None:
    async with asyncio.timeout(60):
        while json.loads(await socket.recv())["type"] != "response.done":
            pass
