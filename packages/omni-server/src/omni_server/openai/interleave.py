"""Several replies at once: what each gives, as it comes.

Knows asyncio. Knows nothing of what is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleaved(
    sources: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """(place of the source, what it gave), until all have ended. What one raises is raised; every
    source is closed at the end, however it comes. Nothing is taken before it is wanted but the next
    of each."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    taking = {asyncio.ensure_future(_next(source)): i for i, source in enumerate(sources)}
    try:
        while taking:
            done, _ = await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                given = task.result()
                place = taking.pop(task)
                if given:
                    yield place, given[0]
                    taking[asyncio.ensure_future(_next(sources[place]))] = place
    finally:
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> list[T]:
    """The next item, or nothing at the end."""
    async for item in source:
        return [item]
    return []
