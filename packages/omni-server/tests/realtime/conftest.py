"""A session without a socket: what a client says goes in, what it would read comes out."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from openai.types.realtime import RealtimeServerEvent

from omni_core.specs import Transcription, TranscriptionTask
from omni_core.types import MediaPart, Message, TextPart
from omni_server.app import server_context
from omni_server.context import ServerContext
from omni_server.rate import RateLimiter
from omni_server.realtime.abilities import Abilities
from omni_server.realtime.conversation import Conversation
from omni_server.realtime.dialect import Dialect, Today
from omni_server.realtime.folding import Folding
from omni_server.realtime.session import Session
from omni_server.realtime.shared import Limited, Shared
from omni_server.realtime.vad import Detection
from omni_server.record import RequestRecord
from omni_server.settings import Settings

SOME_S = 5.0
TEXT = {"output_modalities": ["text"]}


class LoudIsSpeech:
    """A model and a stream of it: what is loud is speech."""

    def stream(self) -> LoudIsSpeech:
        return self

    def probability(self, window: Any) -> float:
        return float(np.abs(window).mean() > 0.05)


class Inline:
    """Runs what it is given at once."""

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


@dataclass
class Desk:
    """One session, and all that was said to its client."""

    context: ServerContext
    dialect: Dialect = field(default_factory=Today)
    kind: Any = "realtime"
    limiter: RateLimiter | None = None
    said: list[dict[str, Any]] = field(default_factory=list)
    breaks_at: str = ""
    """Telling an event of this name is a bug."""

    def __post_init__(self) -> None:
        pipeline = self.context.pipeline
        self.shared = Shared(
            server=self.context,
            put=self.put,
            client="somebody",
            limited=self.limiter and Limited(limiter=self.limiter, client="somebody"),
            session_id="sess_1",
            conversation_id="conv_1",
            conversation=Conversation(),
            folding=Folding(pipeline.info.context_length),
            record=RequestRecord(method="WEBSOCKET", client="somebody"),
        )
        abilities = Abilities(
            pipeline=pipeline,
            voices=self.context.voices,
            served_model_name=self.context.settings.served_model_name,
            no_vad=self.context.speech.why_not,
        )
        model = None if self.context.speech.why_not else LoudIsSpeech()
        self.session = Session(self.shared, abilities, self.dialect, self.kind, model, Inline())
        self.session.greet()

    def put(self, event: dict[str, Any]) -> None:
        """Check an event against openai's types, and keep it."""
        if event["type"] == self.breaks_at:
            raise ValueError("bug")
        sent = msgspec.json.decode(msgspec.json.encode({"event_id": "event_1", **event}))
        for told in self.dialect.events(sent):
            if isinstance(self.dialect, Today) and not _is_extension(told):
                check(told, RealtimeServerEvent)
            self.said.append(told)

    async def tell(self, kind: str, **fields: Any) -> None:
        """Say an event."""
        await self.session.hear(msgspec.json.encode({"type": kind, **fields}).decode())

    async def update(self, **settings: Any) -> dict[str, Any]:
        """Change settings; what the session is like then."""
        await self.tell("session.update", session=settings)
        assert self.said[-1]["type"] == "session.updated", self.said[-1]
        return dict(self.said[-1]["session"])

    async def write(self, text: str = "Hi", role: str = "user", **fields: Any) -> str:
        """Add a message; its id."""
        kind = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        await self.tell("conversation.item.create", item={**item, **fields})
        return str(self.said[-1]["item"]["id"])

    async def ask(self, **settings: Any) -> dict[str, Any]:
        """Have the conversation answered; how that ended."""
        await self.tell("response.create", response=settings)
        await self.quiet()
        assert self.said[-1]["type"] == "response.done", self.said[-1]
        return dict(self.said[-1]["response"])

    async def append(self, samples: Any, step: int = 480) -> None:
        """Send sound in pieces."""
        data = samples.astype("<i2").tobytes()
        for start in range(0, len(data), 2 * step):
            piece = base64.b64encode(data[start : start + 2 * step]).decode()
            await self.tell("input_audio_buffer.append", audio=piece)

    async def refused(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Say an event that must be refused; its error."""
        n_said = len(self.said)
        await self.tell(kind, event_id="mine", **fields)
        [event] = self.said[n_said:]
        assert event["type"] == "error"
        assert event["error"]["event_id"] == "mine"
        return dict(event["error"])

    async def quiet(self) -> None:
        """Until nothing is being answered."""
        await asyncio.wait_for(self.session.quiet(), SOME_S)

    async def until(self, kind: str) -> dict[str, Any]:
        """Until such an event has been said; the last of them."""
        async with asyncio.timeout(SOME_S):
            while kind not in self.kinds:
                await asyncio.sleep(0.001)
        return self.all(kind)[-1]

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.said]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.said if event["type"] == kind]

    @property
    def requests(self) -> list[Any]:
        return list(self.context.pipeline.requests)  # type: ignore[attr-defined]

    def prompt(self, number: int = -1) -> list[tuple[str, str]]:
        """(role, text) of what the model was told."""
        return [
            (message.role, "".join(p.text for p in message.content if isinstance(p, TextPart)))
            for message in self.requests[number].messages
        ]


def check(event: dict[str, Any], union: Any) -> None:
    """Hold an event to the one of openai's types that has its name."""
    kinds = {get_args(one.model_fields["type"].annotation)[0]: one for one in members(union)}
    kinds[event["type"]].model_validate(event)


@cache
def members(union: Any) -> tuple[Any, ...]:
    """Of an annotated union of event types."""
    return get_args(get_args(union)[0])


def _is_extension(event: dict[str, Any]) -> bool:
    """16 kHz is ours."""
    return "16000" in str(event)


def ask(part: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """How the fake pipeline is asked to write down speech."""
    words = f"write down {task.language} {task.prompt}"
    return (Message(role="user", content=(part, TextPart(text=words))),)


@pytest.fixture
async def desks(pipeline: Any, kit: Any) -> AsyncIterator[Callable[..., Desk]]:
    """Makes sessions of one server, which end with the test."""
    pipeline.info = replace(
        pipeline.info, transcription=Transcription(messages=ask), tools=True, grammars=True
    )
    made: list[Desk] = []

    def make(why_not: str | None = None, **fields: Any) -> Desk:
        settings = Settings(served_model_name=kit.MODEL)
        context = replace(
            server_context(pipeline, settings), speech=Detection(LoudIsSpeech, why_not)
        )
        made.append(Desk(context, **fields))
        return made[-1]

    yield make
    for desk in made:
        await asyncio.wait_for(desk.session.close(), SOME_S)


@pytest.fixture
def desk(desks: Callable[..., Desk]) -> Desk:
    """One session that detects turns."""
    return desks()


def speech(seconds: float, rate: int = 24_000, seed: int = 0) -> Any:
    """Loud samples, no two pieces of them the same."""
    rng = np.random.default_rng(seed)
    return rng.integers(8_000, 30_000, round(seconds * rate)).astype(np.int16)


def silence(seconds: float, rate: int = 24_000) -> Any:
    """Quiet samples that are not all the same."""
    return np.arange(round(seconds * rate)) % 7


class Sounds:
    """Names of this file, for modules that cannot import it."""

    speech = staticmethod(speech)
    silence = staticmethod(silence)
    LoudIsSpeech = LoudIsSpeech
    Inline = Inline
    check = staticmethod(check)


@pytest.fixture
def sounds() -> type[Sounds]:
    """Speech and silence."""
    return Sounds
