"""Items of a conversation: what was said, called and answered.

Knows how the protocol writes them, and how a model is told of them. Knows no order.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from omni_core.media.encode import wav_bytes, wav_header
from omni_core.types import MediaPart, Part, Role, TextPart
from omni_server.realtime.formats import Pcm
from omni_server.realtime.heard import heard_text

_PIECE_BYTES: Final = 3 * 2**16
Json: TypeAlias = dict[str, Any]
Status: TypeAlias = Literal["completed", "incomplete", "in_progress"]
Speaker: TypeAlias = Literal["system", "user", "assistant"]


def new_id(prefix: str) -> str:
    """An id as the protocol has them."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class Written:
    """Text that was sent or answered."""

    media_bytes: ClassVar[int] = 0
    text: str

    @property
    def characters(self) -> int:
        """Of text."""
        return len(self.text)

    def json(self, speaker: Speaker, with_sound: bool) -> Json:
        """As the protocol writes it."""
        kind = "output_text" if speaker == "assistant" else "input_text"
        return {"type": kind, "text": self.text}

    def part(self) -> Part:
        """As a model is told of it."""
        return TextPart(text=self.text)


@dataclass(slots=True)
class Sound:
    """What somebody said, as a file of exactly the samples that came."""

    media: MediaPart
    rate: int
    transcript: str | None = None

    @classmethod
    def of(cls, samples: Pcm, rate: int, transcript: str | None = None) -> Sound:
        """16-bit samples at their rate."""
        return cls(MediaPart(kind="audio", data=wav_bytes(samples, rate)), rate, transcript)

    @property
    def samples(self) -> Pcm:
        """The same, 16-bit samples."""
        return np.frombuffer(self._pcm, "<i2").astype(np.int16, copy=False)

    @property
    def n_bytes(self) -> int:
        """Of the samples."""
        return len(self._pcm)

    @property
    def duration_s(self) -> float:
        """In seconds."""
        return self.n_bytes / 2 / self.rate

    @property
    def media_bytes(self) -> int:
        """Of the file."""
        return len(self.media.data or b"")

    @property
    def characters(self) -> int:
        """Of text."""
        return len(self.transcript or "")

    @property
    def _pcm(self) -> memoryview:
        return memoryview(self.media.data or b"")[len(wav_header(self.rate, 0)) :]

    def json(self, speaker: Speaker, with_sound: bool) -> Json:
        """The samples are there if they are asked for, as 16-bit ones at their rate."""
        content: Json = {"type": "input_audio", "transcript": self.transcript}
        if with_sound:
            pieces = range(0, self.n_bytes, _PIECE_BYTES)  # one call would keep all threads waiting
            content["audio"] = "".join(
                base64.b64encode(self._pcm[start : start + _PIECE_BYTES]).decode("ascii")
                for start in pieces
            )
        return content

    def part(self) -> Part:
        """As a model is told of it."""
        return self.media


@dataclass(frozen=True, slots=True)
class Image:
    """A picture. Its bytes are not sent back."""

    media: MediaPart
    characters: ClassVar[int] = 0

    @property
    def media_bytes(self) -> int:
        """Of the file, 0 of one that is elsewhere."""
        return len(self.media.data or b"")

    def json(self, speaker: Speaker, with_sound: bool) -> Json:
        """As the protocol writes it."""
        return {"type": "input_image", "detail": "auto"}

    def part(self) -> Part:
        """As a model is told of it."""
        return self.media


@dataclass(slots=True)
class Spoken:
    """What a reply said aloud. The model is told what of it was heard."""

    media_bytes: ClassVar[int] = 0
    said: str = ""
    sent_ms: int = 0
    """Of sound, so far; 0 of what a client restored, whose sound nobody knows here."""
    is_whole: bool = False
    """All that was to be said has been sent as sound."""
    heard_ms: int | None = None
    """Where it was stopped; None if it was not."""
    is_cut: bool = False
    """What was not heard is gone for the client as well."""

    @property
    def characters(self) -> int:
        """Of text."""
        return len(self.said)

    @property
    def heard(self) -> str:
        """The words that were heard."""
        if self.heard_ms is None:
            return self.said
        whole_ms = self.sent_ms if self.is_whole and self.sent_ms else None
        return heard_text(self.said, self.heard_ms, whole_ms)

    def json(self, speaker: Speaker, with_sound: bool) -> Json:
        """As the protocol writes it."""
        return {"type": "output_audio", "transcript": self.heard if self.is_cut else self.said}

    def part(self) -> Part:
        """As a model is told of it."""
        return TextPart(text=self.heard)


Content: TypeAlias = Written | Sound | Image | Spoken


@dataclass(slots=True, kw_only=True)
class MessageItem:
    """Somebody said something."""

    speaker: Speaker
    content: list[Content] = field(default_factory=list)
    id: str = field(default_factory=lambda: new_id("item"))
    status: Status = "completed"

    def json(self, with_sound: bool = False) -> Json:
        """As the protocol writes it."""
        content = [one.json(self.speaker, with_sound) for one in self.content]
        return _json(self, "message", role=self.speaker, content=content)

    @property
    def sound_bytes(self) -> int:
        """Of what would be shown of it."""
        return sum(one.n_bytes for one in self.content if isinstance(one, Sound))

    @property
    def media_bytes(self) -> int:
        """Of sound and images."""
        return sum(one.media_bytes for one in self.content)

    @property
    def characters(self) -> int:
        """Of text."""
        return sum(one.characters for one in self.content)

    @property
    def role(self) -> Role:
        """As a model is told of it."""
        return self.speaker

    def parts(self) -> tuple[Part, ...]:
        """As a model is told of it; empty text is nothing."""
        parts = (one.part() for one in self.content)
        return tuple(part for part in parts if not isinstance(part, TextPart) or part.text)


@dataclass(slots=True, kw_only=True)
class CallItem:
    """A reply called a function."""

    sound_bytes: ClassVar[int] = 0
    media_bytes: ClassVar[int] = 0
    name: str
    call_id: str = field(default_factory=lambda: new_id("call"))
    arguments: str = ""
    id: str = field(default_factory=lambda: new_id("item"))
    status: Status = "completed"

    @property
    def characters(self) -> int:
        """Of text."""
        return len(self.name) + len(self.arguments)

    def json(self, with_sound: bool = False) -> Json:
        """As the protocol writes it."""
        return _json(
            self, "function_call", name=self.name, call_id=self.call_id, arguments=self.arguments
        )


@dataclass(slots=True, kw_only=True)
class ResultItem:
    """What a function returned."""

    sound_bytes: ClassVar[int] = 0
    media_bytes: ClassVar[int] = 0
    call_id: str
    output: str
    id: str = field(default_factory=lambda: new_id("item"))
    status: Status = "completed"

    @property
    def characters(self) -> int:
        """Of text."""
        return len(self.output)

    def json(self, with_sound: bool = False) -> Json:
        """As the protocol writes it."""
        return _json(self, "function_call_output", call_id=self.call_id, output=self.output)


Item: TypeAlias = MessageItem | CallItem | ResultItem


def placed(what: Literal["added", "done"], item: Item, before: str | None) -> Json:
    """The event that says where an item is in the conversation."""
    return {
        "type": f"conversation.item.{what}",
        "previous_item_id": before,
        "item": item.json(),
    }


def _json(item: Item, kind: str, **fields: object) -> Json:
    known = {"id": item.id, "object": "realtime.item", "type": kind, "status": item.status}
    return {**known, **fields}
