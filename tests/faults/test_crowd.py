"""Fifty streamed chats and fifty readings at once: all are answered, and nobody is starved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median

import httpx
import pytest

from checkpoint import build_endless
from crowd import FAIR_END, FRAMES, KINDS, Kind, Served, crowd

EACH = 50
FAIR_SILENCE = 0.6
"""Of the time until the last one ends, the most that a reply may pause."""

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def served_url(
    live_server: Callable[..., AbstractContextManager[httpx.Client]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A server of a checkpoint whose replies are all of one length."""
    checkpoint = build_endless(Path(tmp_path_factory.mktemp("endless"), "checkpoint"))
    with live_server(checkpoint) as http:
        yield str(http.base_url)


async def test_a_crowd_is_served_whole_and_fairly(served_url: str) -> None:
    alone = await crowd(served_url, 1)
    served = await crowd(served_url, EACH)
    whole_s = max(reply.end_s for replies in served.values() for reply in replies)
    for kind in KINDS:
        replies = served[kind]
        assert len(replies) == EACH
        assert_fair(kind, replies, whole_s)
    [twin] = alone["speech"]
    assert {reply.size_bytes for reply in served["speech"]} == {twin.size_bytes}
    assert twin.size_bytes > FRAMES * 1000


def assert_fair(kind: Kind, replies: list[Served], whole_s: float) -> None:
    ends = [reply.end_s for reply in replies]
    assert max(ends) <= FAIR_END * median(ends), f"{kind}: the last ends long after the others"
    firsts = [reply.first_s for reply in replies]
    assert max(firsts) <= median(ends), f"{kind}: one waits until half have all they asked for"
    silence_s = max(reply.silence_s for reply in replies)
    assert silence_s <= FAIR_SILENCE * whole_s, f"{kind}: one pauses while others are served"
