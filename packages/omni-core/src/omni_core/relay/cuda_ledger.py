"""What the processes at both ends of a card's shared memory must both see: a file of the run.

Its head says which card, which pool and which events; behind it stands one word for each ticket,
into which the reader writes the generation it has released. Only the writer lends, only the reader
releases, so no lock spans the two. Knows files and references. Knows nothing of cards or tensors.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Annotated, Final

import msgspec

from omni_core.errors import ProtocolError

_WORD_BYTES: Final = 8
_HEAD_LIMIT_BYTES: Final = 1 << 20
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader must know of a writer."""

    card: str
    """Its uuid."""
    pool: bytes
    """Handle of the pool's memory."""
    slot_bytes: _Count
    slots: _Count
    events: tuple[bytes, ...]
    """One for each ticket; the first `slots` tickets stand for the slots."""


class CardReference(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of a tensor are on a card."""

    ledger: str
    """Name of the lender's file."""
    ticket: _Count
    generation: _Count
    size_bytes: _Count
    handle: bytes
    """Of the tensor's own allocation; empty if the bytes are in the pool."""
    offset: _Count
    """Within that allocation."""
    crowded: bool
    """The lender is short of room: copy the bytes out and release them at once."""


class Ledger:
    """A mapped ledger. The writer makes the file and removes it; a reader opens it."""

    def __init__(self, path: Path, head: Head, words: mmap.mmap, offset: int) -> None:
        self.path = path
        self.head = head
        self._mapped = words
        self._released = memoryview(words)[offset:].cast("Q")

    @classmethod
    def create(cls, path: Path, head: Head) -> Ledger:
        """A fresh file in which nothing is lent; OSError, and no file, if there is no room."""
        encoded = msgspec.msgpack.encode(head)
        offset = _words_at(len(encoded))
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, offset + len(head.events) * _WORD_BYTES)
            mapped = mmap.mmap(descriptor, 0)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        mapped[_WORD_BYTES : _WORD_BYTES + len(encoded)] = encoded
        mapped[:_WORD_BYTES] = len(encoded).to_bytes(_WORD_BYTES, "little")
        return cls(path, head, mapped, offset)

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Another process's; ProtocolError if it is gone or no ledger."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as exc:
            raise ProtocolError(f"ledger {path.name} cannot be opened: {exc}") from exc
        try:
            mapped = mmap.mmap(descriptor, 0)
            size = int.from_bytes(mapped[:_WORD_BYTES], "little")
            if size > min(len(mapped), _HEAD_LIMIT_BYTES):
                raise ProtocolError(f"ledger {path.name} has a head of {size} bytes")
            head = msgspec.msgpack.decode(mapped[_WORD_BYTES : _WORD_BYTES + size], type=Head)
        except (OSError, ValueError, msgspec.MsgspecError) as exc:
            raise ProtocolError(f"ledger {path.name} cannot be read: {exc}") from exc
        finally:
            os.close(descriptor)
        offset = _words_at(size)
        if len(mapped) != offset + len(head.events) * _WORD_BYTES:
            raise ProtocolError(f"ledger {path.name} has not one word for each ticket")
        return cls(path, head, mapped, offset)

    def released(self, ticket: int) -> int:
        """The last generation of the ticket that its reader has let go."""
        return self._released[ticket]

    def release(self, ticket: int, generation: int) -> None:
        """The reader's last word on a generation."""
        if self._released[ticket] < generation:  # else of one who was taken for dead
            self._released[ticket] = generation

    def close(self) -> None:
        """Unmap; may be called once."""
        self._released.release()
        self._mapped.close()


def _words_at(head_bytes: int) -> int:
    """Where the words begin: at the next multiple of their size."""
    return -(-(_WORD_BYTES + head_bytes) // _WORD_BYTES) * _WORD_BYTES
