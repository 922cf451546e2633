"""How much of their replies clients have not read, each and all together.

Knows bytes. Stages are never held up by a client that reads slowly: what it leaves unread is kept
for it, within these bounds.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from omni_core.types import AudioDelta, CodecDelta, Event, TextDelta, ToolCallDelta

Reader = TypeVar("Reader")

_EVENT_BYTES: Final = 256
"""About what an event takes beside its samples or characters."""


class Unread(Generic[Reader]):
    """The books: {reader: bytes}. Readers are told apart as keys of a dict are."""

    def __init__(
        self, *, most_bytes: int = 32 * 1024 * 1024, most_of_all_bytes: int = 1024 * 1024 * 1024
    ) -> None:
        """`most_bytes` of one reader are five minutes of speech at 24 kHz: further than a listener
        is ever behind."""
        self.most_bytes = most_bytes
        self._most_of_all_bytes = most_of_all_bytes
        self._bytes: dict[Reader, int] = {}
        self.total_bytes = 0

    def add(self, reader: Reader, event: Event) -> Reader | None:
        """Something was put before a reader. Returns who has too much to read now, if anybody."""
        size = _size_bytes(event)
        mine = self._bytes.get(reader, 0) + size
        self._bytes[reader] = mine
        self.total_bytes += size
        if mine > self.most_bytes:
            return reader
        if self.total_bytes > self._most_of_all_bytes:
            return max(self._bytes, key=self._bytes.__getitem__)
        return None

    def clear(self, reader: Reader) -> None:
        """The reader has taken everything, or is gone."""
        self.total_bytes -= self._bytes.pop(reader, 0)


def _size_bytes(event: Event) -> int:
    match event:
        case AudioDelta():
            return _EVENT_BYTES + event.samples.nbytes
        case TextDelta():
            return _EVENT_BYTES + len(event.text)
        case ToolCallDelta():
            return _EVENT_BYTES + len(event.arguments)
        case CodecDelta():
            return _EVENT_BYTES + event.codes.nbytes
        case _:
            return _EVENT_BYTES
