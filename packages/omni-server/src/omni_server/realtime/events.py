"""What a client may say: OpenAI's client events, and bytes to them.

Knows names and types. What an event means is not decided here; unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from omni_core.errors import RequestError
from omni_server.schema.decode import decode_body

MOST_ID_CHARACTERS: Final = 512
MOST_VALUES: Final = 512 * 1024
"""Of JSON in one event, and commas in its texts."""
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_ID_CHARACTERS)]
Index: TypeAlias = Annotated[int, Meta(ge=0)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all have: a name that errors repeat."""

    event_id: Annotated[str, Meta(max_length=MOST_ID_CHARACTERS)] | None = None


class SessionUpdate(_Event, tag="session.update", frozen=True, kw_only=True):
    """Change settings: those that are there."""

    session: dict[str, Any]


class TranscriptionUpdate(_Event, tag="transcription_session.update", frozen=True, kw_only=True):
    """The same of a transcription session, in the beta."""

    session: dict[str, Any]


class AudioAppend(_Event, tag="input_audio_buffer.append", frozen=True, kw_only=True):
    """More sound, as base64."""

    audio: str


class AudioCommit(_Event, tag="input_audio_buffer.commit", frozen=True, kw_only=True):
    """What is in the buffer is a turn."""


class AudioClear(_Event, tag="input_audio_buffer.clear", frozen=True, kw_only=True):
    """Forget what is in the buffer."""


class OutputClear(_Event, tag="output_audio_buffer.clear", frozen=True, kw_only=True):
    """Of calls over WebRTC and SIP."""


class ItemCreate(_Event, tag="conversation.item.create", frozen=True, kw_only=True):
    """Put an item into the conversation."""

    item: dict[str, Any]
    previous_item_id: Id | None = None


class ItemRetrieve(_Event, tag="conversation.item.retrieve", frozen=True, kw_only=True):
    """Show an item with its sound."""

    item_id: Id


class ItemTruncate(_Event, tag="conversation.item.truncate", frozen=True, kw_only=True):
    """No more than this was heard of a reply."""

    item_id: Id
    content_index: Index
    audio_end_ms: Milliseconds


class ItemDelete(_Event, tag="conversation.item.delete", frozen=True, kw_only=True):
    """Take an item out of the conversation."""

    item_id: Id


class ResponseCreate(_Event, tag="response.create", frozen=True, kw_only=True):
    """Answer now."""

    response: dict[str, Any] | None = None


class ResponseCancel(_Event, tag="response.cancel", frozen=True, kw_only=True):
    """Stop answering."""

    response_id: Id | None = None


ClientEvent: TypeAlias = (
    SessionUpdate
    | TranscriptionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
)
NAMES: Final = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
)
_HINTS: Final = {"type": f"events are {', '.join(NAMES)}"}


class _Named(msgspec.Struct):
    event_id: Any = None


def decode_event(text: str) -> ClientEvent:
    """One event; a RequestError names the field at fault."""
    if _has_many_values(text):
        raise RequestError(
            f"The event has more than {MOST_VALUES} values; send less in one.",
            code="event_too_large",
        )
    return decode_body(text.encode(), ClientEvent, _HINTS)  # type: ignore[arg-type]  # a union


def event_id_of(text: str) -> str | None:
    """The name of an event that may be wrong otherwise, for the error that answers it."""
    if _has_many_values(text):
        return None
    try:
        named = msgspec.json.decode(text, type=_Named).event_id
    except (msgspec.DecodeError, RecursionError):
        return None
    short = isinstance(named, str) and len(named) <= MOST_ID_CHARACTERS
    return named if short else None


def _has_many_values(text: str) -> bool:
    """To read and to forget so many would keep everybody waiting, in whatever thread."""
    return len(text) > MOST_VALUES and sum(map(text.count, ",[{")) > MOST_VALUES


def refuse_binary() -> RequestError:
    """Why a binary frame is no event."""
    return RequestError(
        "Events are JSON in text frames; send sound as base64 in input_audio_buffer.append.",
        code="invalid_frame",
    )
