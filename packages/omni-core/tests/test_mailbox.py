"""What waits for a reader, and a reader that waits."""

from __future__ import annotations

import asyncio

import pytest

from omni_core.coordinator.mailbox import Mailbox


async def test_all_that_is_there_comes_at_once_and_in_order() -> None:
    box: Mailbox[int] = Mailbox()
    for number in range(3):
        box.put(number)
    assert await box.take() == [0, 1, 2]
    assert box.collect() == []


async def test_a_reader_waits_for_the_first_item() -> None:
    box: Mailbox[int] = Mailbox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    assert not reader.done()
    box.put(1)
    box.put(2)
    assert await reader == [1, 2]


async def test_a_reader_that_gave_up_takes_nothing_with_it() -> None:
    box: Mailbox[int] = Mailbox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.put(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await box.take() == [1]


async def test_a_reader_whose_items_were_collected_waits_on() -> None:
    box: Mailbox[int] = Mailbox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.put(1)
    assert box.collect() == [1]
    await asyncio.sleep(0)
    assert not reader.done()
    box.put(2)
    assert await reader == [2]
