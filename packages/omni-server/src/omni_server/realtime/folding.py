"""What of a long conversation still fits: its oldest turns go, and the instructions stay.

Knows that a turn begins with what a user says, and about how many tokens things take: replies tell
how many they really took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from omni_server.realtime.items import (
    CallItem,
    Content,
    Image,
    Item,
    MessageItem,
    ResultItem,
    Sound,
    Spoken,
    Written,
)
from omni_server.realtime.settings import SessionSettings

MOST_HELD_BYTES: Final = 64 * 1024 * 1024
"""Of sound, pictures and text in one conversation: 20 minutes at 24 kHz."""
_HELD_ON: Final = 0.8
"""The share of that which stays when it is too much."""
_BYTES_PER_TOKEN: Final = 3.0
_TOKENS_PER_S: Final = 25.0
"""Of sound."""
_TOKENS_PER_IMAGE: Final = 1_000.0
_TOKENS_PER_ITEM: Final = 8.0
"""Of what a template writes around it."""
_LEAST_REPLY: Final = 256
_SMALLEST_SCALE, _LARGEST_SCALE = 0.1, 10.0


class Folding:
    """Knows how large conversations of one session may be."""

    def __init__(self, context_length: int) -> None:
        self._context_length = context_length
        self._scale = 1.0
        """Tokens that were counted, for one that was estimated."""

    def learn(self, estimated: float, counted: int) -> None:
        """A prompt that was estimated to have so many tokens had `counted`."""
        if estimated and counted:
            self._scale = min(max(counted / estimated, _SMALLEST_SCALE), _LARGEST_SCALE)

    def kept(self, items: Sequence[Item], settings: SessionSettings) -> list[Item]:
        """All items if they fit, else the newest turns, with some room to grow."""
        if settings.truncation == "disabled":
            return list(items)
        retention = settings.retention
        most = self._most_tokens(settings)
        if self._tokens(items) <= most and _bytes(items) <= MOST_HELD_BYTES:
            return list(items)
        share = retention.retention_ratio
        return self._newest(items, tokens=share * most, n_bytes=share * MOST_HELD_BYTES)

    def held(self, items: Sequence[Item], most_items: int) -> list[Item]:
        """All items if a session may hold so much, else the newest turns."""
        too_large = _bytes(items) > MOST_HELD_BYTES
        if not too_large and len(items) <= most_items:
            return list(items)
        share = _HELD_ON if too_large else 1.0
        return self._newest(items, n_bytes=share * MOST_HELD_BYTES, count=most_items)

    def half(self, items: Sequence[Item]) -> list[Item]:
        """About half of it: the newest turns."""
        half = self._tokens(items) / 2
        return self._newest(items, tokens=half, n_bytes=MOST_HELD_BYTES)

    def _most_tokens(self, settings: SessionSettings) -> float:
        asked, context = settings.max_output_tokens, self._context_length
        reply = context // 4 if asked == "inf" else min(asked, context // 2)
        of_context = context - max(reply, _LEAST_REPLY) - self._scale * _text(settings.instructions)
        limit = settings.retention.token_limits.post_instructions
        return of_context if limit is None else min(of_context, limit)

    def _newest(
        self,
        items: Sequence[Item],
        *,
        tokens: float = math.inf,
        n_bytes: float = math.inf,
        count: float = math.inf,
    ) -> list[Item]:
        """The newest turns that are within these, and at least the last; what the system says
        stays."""
        left_tokens, left_bytes = self._tokens(items), _bytes(items)
        system: list[Item] = []
        start = 0
        begins = [place for place, item in enumerate(items) if _is_said_by("user", item)]
        for begin in begins[1:]:
            left = len(system) + len(items) - start
            if left_tokens <= tokens and left_bytes <= n_bytes and left <= count:
                break
            dropped = [item for item in items[start:begin] if not _is_said_by("system", item)]
            system += [item for item in items[start:begin] if _is_said_by("system", item)]
            left_tokens -= self._tokens(dropped)
            left_bytes -= _bytes(dropped)
            start = begin
        return [*system, *items[start:]]

    def _tokens(self, items: Sequence[Item]) -> float:
        return self._scale * sum(map(estimate, items))


def estimate(item: Item) -> float:
    """About how many tokens an item takes."""
    match item:
        case MessageItem():
            return _TOKENS_PER_ITEM + sum(map(_content, item.content))
        case CallItem():
            return 2 * _TOKENS_PER_ITEM + _text(item.name) + _text(item.arguments)
        case ResultItem():
            return _TOKENS_PER_ITEM + _text(item.output)


def estimate_all(items: Sequence[Item], instructions: str) -> float:
    """About how many tokens a prompt takes."""
    return _TOKENS_PER_ITEM + _text(instructions) + sum(map(estimate, items))


def _is_said_by(speaker: str, item: Item) -> bool:
    return isinstance(item, MessageItem) and item.speaker == speaker


def _content(content: Content) -> float:
    match content:
        case Written(text=text):
            return _text(text)
        case Spoken():
            return _text(content.heard)
        case Sound():
            return _TOKENS_PER_S * content.duration_s
        case Image():
            return _TOKENS_PER_IMAGE


def _text(text: str) -> float:
    return len(text.encode()) / _BYTES_PER_TOKEN


def _bytes(items: Sequence[Item]) -> int:
    return sum(item.media_bytes + item.characters for item in items)
