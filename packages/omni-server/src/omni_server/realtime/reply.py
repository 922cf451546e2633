"""A reply while it is made: events of the pipeline to items and server events, in OpenAI's order.

Knows what is open and what has been sent. Knows no pipeline, and no clock but the one that says
when sound was first sent.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from omni_core.types import ToolCallDelta
from omni_server.realtime.conversation import Conversation
from omni_server.realtime.items import (
    CallItem,
    Item,
    Json,
    MessageItem,
    Spoken,
    Status,
    Written,
    new_id,
    placed,
)
from omni_server.realtime.shared import Put

Clock = Callable[[], float]
_MS: Final = 1000


class ReplyWriter:
    """Writes one response."""

    def __init__(
        self,
        put: Put,
        response_id: str,
        conversation: Conversation | None,
        *,
        speaks: bool,
        bytes_per_s: int,
        clock: Clock,
    ) -> None:
        """`conversation` is where items go, None for nowhere; sound has `bytes_per_s`; `clock`
        tells seconds."""
        self.items: list[Item] = []
        self._put, self._response_id, self._conversation = put, response_id, conversation
        self._speaks, self._bytes_per_s, self._clock = speaks, bytes_per_s, clock
        self._message: _Message | None = None
        self._call: CallItem | None = None
        self._sent_bytes = 0
        self._first_sound_s: float | None = None

    @property
    def played_until_s(self) -> float | None:
        """When a client that plays sound as it comes has played all; None without any."""
        if self._first_sound_s is None:
            return None
        return self._first_sound_s + self._sent_bytes / self._bytes_per_s

    def text(self, delta: str) -> None:
        """More text: of the answer, or of what is said aloud."""
        if delta:
            self._opened().add(self, delta)

    def sound(self, data: bytes) -> None:
        """More sound, in the format of the response."""
        if not data:
            return
        message = self._opened()
        self._first_sound_s = self._first_sound_s or self._clock()
        self._sent_bytes += len(data)
        message.spoken.sent_ms = self._sent_bytes * _MS // self._bytes_per_s
        delta = base64.b64encode(data).decode("ascii")
        self.say("response.output_audio.delta", message.place, content_index=0, delta=delta)

    def call(self, event: ToolCallDelta) -> None:
        """More of a call; one that begins ends what was open, but for a message that is spoken: its
        sound is still to come."""
        if event.name is not None:
            if not self._speaks:
                self._close_message("completed")
            self._close_call("completed")
            self._call = CallItem(
                call_id=event.call_id, name=event.name, id=new_id("item"), status="in_progress"
            )
            self._begin(self._call)
        if self._call is None:
            return
        self._call.arguments += event.arguments
        if event.arguments:
            self.say(
                "response.function_call_arguments.delta",
                _Place(self._call.id, self._place_of(self._call)),
                call_id=self._call.call_id,
                delta=event.arguments,
            )

    def end(self, status: Status, *, is_whole: bool) -> None:
        """Nothing more comes. A spoken reply that is not whole was heard for as long as it can have
        been played."""
        message = self._message
        if message is not None and self._speaks:
            message.spoken.is_whole = is_whole
            if not is_whole and not message.spoken.is_cut:  # or the client knows better
                message.spoken.heard_ms = self._played_ms()
        self._close_message(status)
        self._close_call(status)

    def say(self, kind: str, place: _Place, **fields: object) -> None:
        """Send an event about an item."""
        self._put(
            {
                "type": kind,
                "response_id": self._response_id,
                "item_id": place.item_id,
                "output_index": place.index,
                **fields,
            }
        )

    def _played_ms(self) -> int:
        if self._first_sound_s is None:
            return 0
        played_ms = round((self._clock() - self._first_sound_s) * _MS)
        return min(played_ms, self._sent_bytes * _MS // self._bytes_per_s)

    def _opened(self) -> _Message:
        if self._message is None:
            item = MessageItem(speaker="assistant", status="in_progress")
            self._begin(item)
            self._message = _Message(item, _Place(item.id, self._place_of(item)), self._speaks)
            self._message.open(self)
        return self._message

    def _begin(self, item: Item) -> None:
        self.items.append(item)
        self._put(self._output_item("added", item))
        if self._conversation is not None:
            self._put(placed("added", item, self._conversation.add(item)))

    def _close_message(self, status: Status) -> None:
        if self._message is not None:
            self._message.close(self)
            self._done(self._message.item, status)
        self._message = None

    def _close_call(self, status: Status) -> None:
        if self._call is not None:
            self.say(
                "response.function_call_arguments.done",
                _Place(self._call.id, self._place_of(self._call)),
                call_id=self._call.call_id,
                name=self._call.name,
                arguments=self._call.arguments,
            )
            self._done(self._call, status)
        self._call = None

    def _done(self, item: Item, status: Status) -> None:
        item.status = status
        self._put(self._output_item("done", item))
        if self._conversation is not None and self._conversation.has(item.id):
            self._put(placed("done", item, self._conversation.before(item)))

    def _output_item(self, what: str, item: Item) -> Json:
        return {
            "type": f"response.output_item.{what}",
            "response_id": self._response_id,
            "output_index": self._place_of(item),
            "item": item.json(),
        }

    def _place_of(self, item: Item) -> int:
        return [one.id for one in self.items].index(item.id)


@dataclass(frozen=True, slots=True)
class _Place:
    item_id: str
    index: int


class _Message:
    """The one content part of a message: text, or sound with its transcript."""

    def __init__(self, item: MessageItem, place: _Place, speaks: bool) -> None:
        self.item, self.place, self._speaks = item, place, speaks
        self.spoken = Spoken()
        self._text = ""

    def open(self, writer: ReplyWriter) -> None:
        if self._speaks:
            self.item.content.append(self.spoken)
        writer.say("response.content_part.added", self.place, content_index=0, part=self._part())

    def add(self, writer: ReplyWriter, delta: str) -> None:
        self._text += delta
        name = "output_text"
        if self._speaks:
            self.spoken.said, name = self._text, "output_audio_transcript"
        writer.say(f"response.{name}.delta", self.place, content_index=0, delta=delta)

    def close(self, writer: ReplyWriter) -> None:
        place, text = self.place, self._text
        if self._speaks:
            writer.say("response.output_audio.done", place, content_index=0)
            kind = "response.output_audio_transcript.done"
            writer.say(kind, place, content_index=0, transcript=text)
        else:
            self.item.content = [Written(text)]
            writer.say("response.output_text.done", place, content_index=0, text=text)
        writer.say("response.content_part.done", place, content_index=0, part=self._part())

    def _part(self) -> Json:
        if self._speaks:
            return {"type": "audio", "transcript": self._text}
        return {"type": "text", "text": self._text}
