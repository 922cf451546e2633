"""What carries the bytes of large tensors to another process, whatever memory they lie in.

Knows the contract only. Knows nothing of dtypes, messages or sockets: `codec` turns tensors into
flat bytes and back, and a reference travels in the message that the tensor belongs to.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Memory = TypeVar("Memory")
"""Flat bytes where a relay can reach them: a uint8 numpy array or a uint8 torch tensor, 1-d."""
Reference = TypeVar("Reference")
"""A small msgspec struct that says where the bytes are; the wire's only word about them."""


class Relay(Protocol[Memory, Reference]):
    """Lends memory of this process to others and borrows theirs; safe from any thread.

    Whoever holds a reference opens it once. Nothing is sent to give memory back: the borrower marks
    it as released in memory that both see, and the lender finds the mark when it needs room.
    """

    def place(self, data: Memory, target: str) -> Reference:
        """Copy `data` to where process `target` can open it; the caller may reuse `data` at once.

        Waits for room, up to a deadline of the relay, so never call it where messages are read.
        RelayFullError if no room came, StageError if there never can be enough.
        """

    def open(self, reference: Reference) -> Memory:
        """What was placed, read-only by contract: a view of it, or a copy if the lender is short.

        The memory is released when the view and all that was made from it without copying are
        gone. Never waits. ProtocolError for a reference that is not true, or no longer, or opened
        before; nothing of it is used before it is checked.
        """

    def discard(self, reference: Reference) -> None:
        """Free what was placed for a message that is not sent after all."""

    def forget(self, process: str) -> None:
        """A process has died: take back what it was lent; what it lent stays until released."""

    def stats(self) -> dict[str, float]:
        """Counters and gauges by name."""

    def close(self) -> None:
        """Lend nothing more, wake those who wait and leave no file; views in use stay valid."""
