"""`python bench/talk.py PLAN`: sessions of WS /v1/realtime in a process of their own.

PLAN is a `Plan` as JSON; what its kind of conversation returns is printed as JSON. Times are those
of the monotonic clock, which all processes of a machine share. Knows the wire and little of the
protocol.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import ceil
from typing import Any, Final, Literal

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from client import ask
from omni_core.media.encode import pcm16, wav_bytes
from omni_core.testing.voice import VOWEL_S, say_vowels
from omni_core.types import FloatArray

RATE: Final = 24_000
PATIENCE_S: Final = 60.0
"""Nothing that is waited for takes longer."""
PING_S: Final = 0.5
TOKENS: Final = 12
WINDOW_MS: Final = 32
SHOWS_SPEECH_MS: Final = 3 * WINDOW_MS
"""So much speech must have come before it is taken for that."""
POURED_MS: Final = 200
POURED_AT_ONCE_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do where."""

    port: int
    model: str
    kind: Literal["turns", "manual", "chat", "interruptions", "crowd", "pour"]
    tries: int = 1
    first: int = 0
    """Number of the first try: no two say the same."""
    sessions: int = 1
    seconds: float = 0.0
    chunk_ms: int = 20
    answered: bool = True
    """Turns are."""
    spoken_s: float = 0.0
    """Of each minute that is poured."""


class Error(msgspec.Struct):
    """What an error event says."""

    message: str = ""
    event_id: str | None = None


class Event(msgspec.Struct):
    """What this client reads of a server's event."""

    type: str
    audio_start_ms: int = 0
    audio_end_ms: int = 0
    error: Error | None = None


@dataclass(slots=True)
class Talk:
    """One session: a microphone that is always on, and what the server said when."""

    socket: ClientConnection
    chunk_ms: int
    sent: list[float] = field(default_factory=list)
    """When each chunk was."""
    lags: list[float] = field(default_factory=list)
    """Seconds until each ping was answered, which waits behind all sound before it."""
    is_on: bool = True
    """The microphone is."""
    counts: dict[str, int] = field(default_factory=dict)
    """Events so far, by their type."""
    _waiting: deque[str] = field(default_factory=deque)
    _told: asyncio.Queue[tuple[float, Event]] = field(default_factory=asyncio.Queue)
    _pings: dict[str, float] = field(default_factory=dict)

    async def tell(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> tuple[float, Event]:
        """When the next event of that type came, and the event."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                at, event = await self._told.get()
                if event.error is not None:
                    raise SystemExit(f"the server said {event.error.message}")
                if event.type == kind:
                    return at, event

    def say(self, chunks: Sequence[str]) -> tuple[int, int]:
        """Speak these next; the numbers of the first and the last among all chunks."""
        first = len(self.sent) + len(self._waiting)
        self._waiting.extend(chunks)
        return first, first + len(chunks) - 1

    def chunk_at(self, ms: float) -> int:
        """The number of the chunk with the last sample before that time of the session."""
        return ceil(ms / self.chunk_ms) - 1

    async def ping(self) -> None:
        """Say what no server knows: the answer shows how far it has read."""
        name = f"ping-{len(self.lags) + len(self._pings)}"
        self._pings[name] = time.monotonic()
        await self.tell("ping", event_id=name)

    async def all_read(self) -> None:
        """Until the server has read all there is."""
        await self.ping()
        async with asyncio.timeout(PATIENCE_S):
            while self._pings:
                await asyncio.sleep(0.002)

    async def listen(self) -> None:
        """Take what the server says, until the end."""
        async for text in self.socket:
            at, event = time.monotonic(), msgspec.json.decode(text, type=Event)
            self.counts[event.type] = self.counts.get(event.type, 0) + 1
            asked = event.error and event.error.event_id
            if asked in self._pings:
                self.lags.append(at - self._pings.pop(asked))
            else:
                self._told.put_nowait((at, event))

    async def record(self) -> None:
        """Send a chunk whenever one is due, of silence where nothing is said."""
        nothing = chunks_of(silence(self.chunk_ms / 1000), self.chunk_ms)[0]
        began = time.monotonic()
        while self.is_on:
            due = began + len(self.sent) * self.chunk_ms / 1000
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            chunk = self._waiting.popleft() if self._waiting else nothing
            self.sent.append(time.monotonic())
            await self.socket.send(chunk)


@asynccontextmanager
async def talking(plan: Plan, *, microphone: bool = True, **turns: Any) -> AsyncIterator[Talk]:
    """A session; `turns` is how it detects them, or not at all without a microphone."""
    detection = {"type": "server_vad", **turns} if turns or microphone else None
    url = f"ws://127.0.0.1:{plan.port}/v1/realtime?model={plan.model}"
    async with connect(url, compression=None, max_size=None) as socket:
        talk = Talk(socket, plan.chunk_ms)
        tasks = [asyncio.create_task(talk.listen())]
        try:
            await talk.tell(
                "session.update",
                session={
                    "type": "realtime",
                    "max_output_tokens": TOKENS,
                    "audio": {"input": {"turn_detection": detection}},
                },
            )
            await talk.until("session.updated")
            if microphone:
                tasks.append(asyncio.create_task(talk.record()))
            yield talk
        finally:
            for task in tasks:
                task.cancel()


def voice(seconds: float, number: int) -> FloatArray:
    """Somebody who says vowels without a pause; no two numbers sound the same. In this order the
    speech model takes any half second of them for speech, which it does not of every order."""
    vowels = islice(cycle("aeiou"), ceil(seconds / VOWEL_S))
    return say_vowels("".join(vowels), RATE, number)[: round(seconds * RATE)]


def silence(seconds: float) -> FloatArray:
    """As many samples of nothing."""
    return np.zeros(round(seconds * RATE), np.float32)


def chunks_of(samples: FloatArray, chunk_ms: int) -> list[str]:
    """The events that append them."""
    step = RATE * chunk_ms // 1000
    pieces = [samples[start : start + step] for start in range(0, len(samples), step)]
    return [
        json.dumps(
            {
                "type": "input_audio_buffer.append",
                "audio": base64.b64encode(pcm16(piece)).decode(),
            }
        )
        for piece in pieces
    ]


async def cancel(talk: Talk) -> None:
    """End the response, and wait until it has."""
    await talk.tell("response.cancel")
    await talk.until("response.done")


async def turns(plan: Plan) -> list[dict[str, float]]:
    """Spoken turns that the server finds and answers."""
    found = []
    async with talking(plan) as talk:
        for number in range(plan.first, plan.first + plan.tries):
            _, last = talk.say(chunks_of(voice(1.0, number), plan.chunk_ms))
            _, stopped = await talk.until("input_audio_buffer.speech_stopped")
            heard, _ = await talk.until("response.output_audio.delta")
            await cancel(talk)
            shown = talk.sent[talk.chunk_at(stopped.audio_end_ms)]
            found.append({"spoken": talk.sent[last], "ended": shown, "heard": heard})
    return found


async def manual(plan: Plan) -> list[dict[str, float]]:
    """Turns that the client ends itself."""
    found = []
    async with talking(plan, microphone=False) as talk:
        for number in range(plan.first, plan.first + plan.tries):
            [sound] = chunks_of(voice(1.0, number), 1_000)
            await talk.socket.send(sound)
            await talk.all_read()
            ended = time.monotonic()
            await talk.tell("input_audio_buffer.commit")
            await talk.tell("response.create")
            heard, _ = await talk.until("response.output_audio.delta")
            await cancel(talk)
            found.append({"ended": ended, "heard": heard})
    return found


async def chat(plan: Plan) -> list[dict[str, float]]:
    """The same sound as a chat over HTTP."""
    found = []
    for number in range(plan.first, plan.first + plan.tries):
        wav = base64.b64encode(wav_bytes(voice(1.0, number), RATE)).decode()
        part = {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
        body = {
            "model": plan.model,
            "messages": [{"role": "user", "content": [part]}],
            "modalities": ["text", "audio"],
            "audio": {"format": "pcm16"},
            "max_tokens": TOKENS,
            "stream": True,
            "stage_params": {"talker_ar": {"max_tokens": TOKENS}},
        }
        ended = time.monotonic()
        reply = await ask(f"http://127.0.0.1:{plan.port}", body)
        assert reply.first_audio_s is not None
        found.append({"ended": ended, "heard": ended + reply.first_audio_s})
    return found


async def interruptions(plan: Plan) -> list[dict[str, float]]:
    """Replies that somebody speaks into."""
    found = []
    content = [{"type": "input_text", "text": "What did the fox say?"}]
    item = {"type": "message", "role": "user", "content": content}
    async with talking(plan, create_response=False, prefix_padding_ms=0) as talk:
        for number in range(plan.first, plan.first + plan.tries):
            await talk.tell("conversation.item.create", item=item)
            await talk.tell("response.create")
            await talk.until("response.output_audio.delta")
            first, _ = talk.say(chunks_of(voice(0.5, number), plan.chunk_ms))
            _, started = await talk.until("input_audio_buffer.speech_started")
            over, _ = await talk.until("response.done")
            shown = talk.chunk_at(started.audio_start_ms + SHOWS_SPEECH_MS)
            found.append({"began": talk.sent[first], "shown": talk.sent[shown], "over": over})
            await talk.until("input_audio_buffer.speech_stopped")
    return found


async def crowd(plan: Plan) -> list[dict[str, Any]]:
    """Many sessions at once, each with somebody who speaks for a second of every three."""
    return await asyncio.gather(*(_one_of_many(plan, number) for number in range(plan.sessions)))


async def _one_of_many(plan: Plan, number: int) -> dict[str, Any]:
    said = chunks_of(voice(1.0, number), plan.chunk_ms)
    await asyncio.sleep(plan.chunk_ms / 1000 * number / plan.sessions)
    async with talking(plan, create_response=plan.answered) as talk:
        until = time.monotonic() + plan.seconds
        spoken, next_turn = 0, time.monotonic() + 3 * number / plan.sessions
        while time.monotonic() < until:
            if time.monotonic() >= next_turn and until - time.monotonic() > 2:
                talk.say(said)
                spoken, next_turn = spoken + 1, next_turn + 3
            await talk.ping()
            await asyncio.sleep(PING_S)
        talk.is_on = False
        await talk.all_read()
        noticed = talk.counts.get("input_audio_buffer.speech_stopped", 0)
        behind = [at - talk.sent[0] - i * plan.chunk_ms / 1000 for i, at in enumerate(talk.sent)]
        return {
            "lags": talk.lags,
            "spoken": spoken,
            "noticed": noticed,
            "refused": talk.counts.get("error", 0) - len(talk.lags),
            "chunks": len(talk.sent),
            "sent_late": max(behind),
        }


async def pour(plan: Plan) -> dict[str, float]:
    """A minute after the other as fast as it is taken, each of it at once."""
    sound = np.concatenate(
        [voice(plan.spoken_s, 0), silence(POURED_AT_ONCE_S - plan.spoken_s)]
        if plan.spoken_s
        else [silence(POURED_AT_ONCE_S)]
    )
    chunks = chunks_of(sound, POURED_MS)
    began = time.monotonic()
    async with talking(plan, microphone=False, create_response=plan.answered) as talk:
        for _ in range(round(plan.seconds / POURED_AT_ONCE_S)):
            for chunk in chunks:
                await talk.socket.send(chunk)
            await talk.all_read()
        noticed = talk.counts.get("input_audio_buffer.speech_stopped", 0)
        return {"took_s": time.monotonic() - began, "noticed": noticed}


KINDS: Final = {
    "turns": turns,
    "manual": manual,
    "chat": chat,
    "interruptions": interruptions,
    "crowd": crowd,
    "pour": pour,
}


def main(plan: str) -> None:
    """Do what the plan says, and print what came of it."""
    chosen = Plan(**json.loads(plan))
    print(json.dumps(asyncio.run(KINDS[chosen.kind](chosen))))


if __name__ == "__main__":
    main(sys.argv[1])
