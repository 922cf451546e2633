"""What clients do to the items of a conversation, and what they are told of it.

Knows the conversation, how much of it is kept, and who writes down what is said. Knows no turns.
"""

from __future__ import annotations

import asyncio
from typing import Final

from omni_core.errors import RequestError
from omni_server.realtime.conversation import MOST_ITEMS, REPLY_ITEMS
from omni_server.realtime.events import ItemTruncate
from omni_server.realtime.folding import MOST_HELD_BYTES
from omni_server.realtime.formats import AudioFormat
from omni_server.realtime.item_parser import parse_item
from omni_server.realtime.items import Item, Json, MessageItem, Sound, placed
from omni_server.realtime.scribe import How, Scribe
from omni_server.realtime.settings import MOST_CHARACTERS, SessionSettings
from omni_server.realtime.shared import Shared

MOST_SHOWN_BYTES: Final = 20 * 1024 * 1024
"""Of sound in one event."""


class Editor:
    """Changes the conversation of one session, and says so."""

    def __init__(self, shared: Shared, scribe: Scribe) -> None:
        self._shared, self._scribe = shared, scribe

    def parse(self, written: Json, path: str, audio_format: AudioFormat) -> Item:
        """The item that a client writes at `path`; an error names the field at fault."""
        return parse_item(
            written,
            path,
            info=self._shared.pipeline.info,
            limits=self._shared.server.settings.media,
            audio_format=audio_format,
        )

    def chosen(self, written: tuple[Json, ...], audio_format: AudioFormat) -> list[Item]:
        """The items of `response.input`; an error names the one at fault. Each is counted as often
        as it is there: the model is told of it that often."""
        if len(written) > MOST_ITEMS:
            raise _too_much(f"{MOST_ITEMS} items")
        items: list[Item] = []
        n_bytes = n_characters = 0
        for index, one in enumerate(written):
            if one.get("type") == "item_reference":
                item = self._shared.conversation.get(str(one.get("id")))
            else:
                item = self.parse(one, f"response.input[{index}]", audio_format)
            items.append(item)
            n_bytes += item.media_bytes
            n_characters += item.characters
            if n_bytes > MOST_HELD_BYTES:
                raise _too_much(f"{MOST_HELD_BYTES} bytes of sound and images")
            if n_characters > MOST_CHARACTERS:
                raise _too_much(f"{MOST_CHARACTERS} characters of text")
        return items

    def whole(self, settings: SessionSettings, *, may_fold: bool) -> list[Item]:
        """The conversation, as far as it fits."""
        conversation = self._shared.conversation
        if may_fold:
            self.fold(MOST_ITEMS - REPLY_ITEMS)
            conversation.keep(self._shared.folding.kept(conversation.items, settings))
        return conversation.items

    def add_written(self, item: Item, settings: SessionSettings, after: str | None) -> None:
        """Add what a client wrote. Where old turns may go, a full conversation makes room for it,
        as for a turn that is spoken."""
        if settings.truncation != "disabled" and not self._shared.conversation.has(item.id):
            self.fold(MOST_ITEMS - 1)
        self.add(item, settings, after)

    def add(self, item: Item, settings: SessionSettings, after: str | None = None) -> None:
        """Put an item behind the one `after`, or at the end; its sound is written down where the
        settings say so."""
        before = self._shared.conversation.add(item, after)
        self.fold(MOST_ITEMS)
        self._shared.put(placed("added", item, before))
        self._shared.put(placed("done", item, before))
        asked = settings.audio.input.transcription
        if asked is None or not isinstance(item, MessageItem):
            return
        for index, content in enumerate(item.content):
            if isinstance(content, Sound) and content.transcript is None:
                how = How(asked, with_logprobs=bool(settings.include))
                self._scribe.write(item.id, index, content, how)

    def add_turn(self, item: MessageItem, settings: SessionSettings) -> None:
        """Add what was just said, in the place of the oldest turn if there is no other."""
        self.fold(MOST_ITEMS - 1)
        self._shared.put(
            {
                "type": "input_audio_buffer.committed",
                "previous_item_id": self._shared.conversation.last_id,
                "item_id": item.id,
            }
        )
        self.add(item, settings)

    def fold(self, most_items: int) -> None:
        """Forget old turns of a session that nobody has answered for long."""
        conversation = self._shared.conversation
        conversation.keep(self._shared.folding.held(conversation.items, most_items))

    async def show(self, item_id: str) -> None:
        """Tell all of an item."""
        item = self._shared.conversation.get(item_id)
        if item.sound_bytes > MOST_SHOWN_BYTES:
            raise RequestError(
                f"Item {item.id!r} holds more than {MOST_SHOWN_BYTES} bytes of sound, too many for "
                "one event.",
                param="item_id",
                code="item_too_large",
            )
        shown = await asyncio.to_thread(item.json, with_sound=True)
        self._shared.put({"type": "conversation.item.retrieved", "item": shown})

    def truncate(self, event: ItemTruncate) -> None:
        """Forget what was not heard of a spoken reply."""
        self._shared.conversation.truncate(event.item_id, event.content_index, event.audio_end_ms)
        self._shared.put(
            {
                "type": "conversation.item.truncated",
                "item_id": event.item_id,
                "content_index": event.content_index,
                "audio_end_ms": event.audio_end_ms,
            }
        )

    def delete(self, item_id: str) -> None:
        """Take an item out."""
        self._shared.conversation.delete(item_id)
        self._shared.put({"type": "conversation.item.deleted", "item_id": item_id})


def _too_much(what: str) -> RequestError:
    return RequestError(f"'response.input' holds over {what}; send less.", param="response.input")
