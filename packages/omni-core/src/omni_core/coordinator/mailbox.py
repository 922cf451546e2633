"""What a client has not been told yet.

For one reader and its event loop. Knows nothing of what it keeps. An `asyncio.Queue` costs a
request that is answered at once as much as all the rest of the coordinator.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Keeps what is put in, in order, until its reader takes all of it."""

    __slots__ = ("_items", "_reader")

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        """Add an item, and wake the reader."""
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def collect(self) -> list[Item]:
        """All that is there now."""
        items, self._items = self._items, []
        return items

    async def take(self) -> list[Item]:
        """All that is there, at least one item; waits for it."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.collect()
