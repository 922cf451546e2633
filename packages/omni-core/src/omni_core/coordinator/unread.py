"""How much of their replies clients have not read, each and all together.

Knows bytes and seconds. Stages are never held up by a client that reads slowly: what it leaves
unread is kept for it, within these bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from omni_core.types import AudioDelta, CodecDelta, Event, TextDelta, ToolCallDelta

Reader = TypeVar("Reader")

_EVENT_BYTES: Final = 256
"""About what an event takes beside its samples or characters."""


class Unread(Generic[Reader]):
    """The books: {reader: what it has not read}. Readers are told apart as keys of a dict are."""

    def __init__(
        self,
        *,
        most_audio_s: float = 1800.0,
        most_bytes: int = 32 * 1024 * 1024,
        most_of_all_bytes: int = 1024 * 1024 * 1024,
    ) -> None:
        """Audio counts by how long it lasts, at whatever rate: who listens while it is made in a
        tenth of the time is behind by nearly all of it. `most_bytes` are of anything else."""
        self._most_audio_s = most_audio_s
        self._most_bytes = most_bytes
        self._most_of_all_bytes = most_of_all_bytes
        self._unread: dict[Reader, _Amount] = {}
        self.total_bytes = 0

    def add(self, reader: Reader, event: Event) -> Reader | None:
        """Something was put before a reader. Returns who has too much to read now, if anybody."""
        mine = self._unread.setdefault(reader, _Amount())
        self.total_bytes += mine.add(event)
        if mine.audio_s > self._most_audio_s or mine.other_bytes > self._most_bytes:
            return reader
        if self.total_bytes > self._most_of_all_bytes:
            return max(self._unread, key=lambda reader: self._unread[reader].bytes)
        return None

    def clear(self, reader: Reader) -> None:
        """The reader has taken everything, or is gone."""
        if (mine := self._unread.pop(reader, None)) is not None:
            self.total_bytes -= mine.bytes


@dataclass(slots=True)
class _Amount:
    """Of one reader."""

    bytes: int = 0
    """In all."""
    audio_s: float = 0.0
    other_bytes: int = 0

    def add(self, event: Event) -> int:
        """Count an event; its bytes."""
        size = _size_bytes(event)
        self.bytes += size
        if isinstance(event, AudioDelta):
            # The rate is a plugin's word.
            self.audio_s += event.samples.size / max(1, event.sample_rate)
        else:
            self.other_bytes += size
        return size


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
