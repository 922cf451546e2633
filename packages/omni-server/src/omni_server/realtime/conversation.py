"""The conversation of a session: its items in their order, and what a model is told of them.

Knows items. What of them still fits is `folding`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from omni_core.errors import NotFoundError, RequestError
from omni_core.types import Message, TextPart, ToolCall
from omni_server.realtime.items import CallItem, Item, MessageItem, ResultItem, Spoken

MOST_ITEMS: Final = 2_000
REPLY_ITEMS: Final = 64
"""Of these, there is room for in front of a response."""
ROOT: Final = "root"
"""What clients call the place before the first item."""


class Conversation:
    """Items by their ids, in order."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    @property
    def items(self) -> list[Item]:
        """All, in order."""
        return list(self._items.values())

    @property
    def last_id(self) -> str | None:
        """Of the last item, if there is one."""
        return next(reversed(self._items), None)

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Put an item behind the one `after`, or at the end; the id of the one before it."""
        if item.id in self._items:
            raise RequestError(
                f"There is an item {item.id!r} already; leave 'item.id' out, or send another.",
                param="item.id",
                code="item_create_duplicate_item_id",
            )
        if len(self._items) >= MOST_ITEMS:
            raise RequestError(
                f"The conversation has {MOST_ITEMS} items; delete some.", code="too_many_items"
            )
        if after is None or after == self.last_id:
            before = self.last_id
            self._items[item.id] = item
            return before
        ids = list(self._items)
        if after != ROOT and after not in self._items:
            raise _unknown(after, "previous_item_id")
        place = 0 if after == ROOT else ids.index(after) + 1
        items = self.items
        self._items = {one.id: one for one in (*items[:place], item, *items[place:])}
        return None if after == ROOT else after

    def before(self, item: Item) -> str | None:
        """The id of the item before this one."""
        ids = list(self._items)
        place = ids.index(item.id) if item.id in self._items else 0
        return ids[place - 1] if place else None

    def get(self, item_id: str) -> Item:
        """The item; NotFoundError if there is none."""
        item = self._items.get(item_id)
        if item is None:
            raise _unknown(item_id, "item_id")
        return item

    def has(self, item_id: str) -> bool:
        """Whether there is such an item."""
        return item_id in self._items

    def delete(self, item_id: str) -> None:
        """Take the item out; NotFoundError if there is none."""
        self.get(item_id)
        del self._items[item_id]

    def keep(self, items: Iterable[Item]) -> None:
        """Take all others out."""
        self._items = {item.id: item for item in items}

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """Forget what was not heard of a spoken reply."""
        item = self.get(item_id)
        if not isinstance(item, MessageItem) or item.speaker != "assistant":
            raise RequestError(
                f"Item {item_id!r} is no message of the assistant; only those can be truncated.",
                param="item_id",
            )
        spoken = item.content[content_index] if content_index < len(item.content) else None
        if not isinstance(spoken, Spoken):
            raise RequestError(
                f"Item {item_id!r} has no sound at content {content_index}.", param="content_index"
            )
        if spoken.sent_ms and heard_ms > spoken.sent_ms:
            raise RequestError(
                f"'audio_end_ms': only {spoken.sent_ms} ms of sound were sent.",
                param="audio_end_ms",
            )
        spoken.heard_ms, spoken.is_cut = heard_ms, True


def to_messages(items: Sequence[Item], instructions: str) -> tuple[Message, ...]:
    """What a model is told: the instructions, then the items; those that say nothing are left out,
    as are results of calls that are not there."""
    messages: list[Message] = []
    if instructions:
        messages.append(Message(role="system", content=(TextPart(text=instructions),)))
    called: set[str] = set()
    for item in items:
        match item:
            case MessageItem():
                if parts := item.parts():
                    messages.append(Message(role=item.role, content=parts))
            case CallItem():
                called.add(item.call_id)
                _add_call(messages, item)
            case ResultItem():
                if item.call_id in called:
                    content = (TextPart(text=item.output),)
                    messages.append(
                        Message(role="tool", content=content, tool_call_id=item.call_id)
                    )
    return tuple(messages)


def _add_call(messages: list[Message], item: CallItem) -> None:
    """To what the same reply said, or called before."""
    call = ToolCall(call_id=item.call_id, name=item.name, arguments=_arguments(item.arguments))
    if messages and messages[-1].role == "assistant":
        calls = (*messages[-1].tool_calls, call)
        messages[-1] = msgspec.structs.replace(messages[-1], tool_calls=calls)
    else:
        messages.append(Message(role="assistant", content=(), tool_calls=(call,)))


def _arguments(text: str) -> dict[str, Any]:
    """What a call that was cut off has written is nothing yet."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _unknown(item_id: str, param: str) -> NotFoundError:
    return NotFoundError(
        f"There is no item {item_id[:64]!r} in the conversation.",
        param=param,
        code="item_not_found",
    )
