"""Parts that several requests have in common: fetched once, held no longer than it takes."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from omni_core.errors import MediaError
from omni_core.media import MediaLimits, SharedFetches
from omni_core.media.once import HELD_ITEMS
from omni_core.types import MediaPart, Shared

LIMITS = MediaLimits()


class Web:
    """Counts fetches; answers with the URL, or raises, once `open`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str | None] = []
        self.error = error
        self.open = threading.Event()
        self.open.set()

    def __call__(self, part: MediaPart, limits: MediaLimits) -> bytes:
        self.asked.append(part.url)
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        return part.data or str(part.url).encode()


def part(url: str = "u", by: str = "a", requests: int = 4) -> MediaPart:
    return MediaPart(kind="image", url=url, shared=Shared(by=by, requests=requests))


def test_all_who_come_at_once_wait_for_one_fetch() -> None:
    web = Web()
    web.open.clear()
    fetches = SharedFetches(fetch=web)
    with ThreadPoolExecutor(4) as pool:
        coming = [pool.submit(fetches.bytes_of, part(), LIMITS) for _ in range(4)]
        assert not any(future.done() for future in coming)
        web.open.set()
        assert [future.result(10) for future in coming] == [b"u"] * 4
    assert web.asked == ["u"]


def test_who_comes_later_gets_the_same_until_all_have_come() -> None:
    web = Web()
    fetches = SharedFetches(fetch=web)
    for _ in range(4):
        assert fetches.bytes_of(part(), LIMITS) == b"u"
    assert web.asked == ["u"]
    fetches.bytes_of(part(), LIMITS)
    assert web.asked == ["u", "u"]


def test_other_urls_and_other_requests_share_nothing() -> None:
    web = Web()
    fetches = SharedFetches(fetch=web)
    for other in (part("v"), part(by="b"), MediaPart(kind="image", url="u")):
        fetches.bytes_of(part(), LIMITS)
        fetches.bytes_of(other, LIMITS)
    assert web.asked == ["u", "v", "u", "u"]
    inline = MediaPart(kind="image", data=b"x", shared=Shared(by="a", requests=4))
    assert fetches.bytes_of(inline, LIMITS) == b"x"


def test_a_refusal_is_told_to_all() -> None:
    web = Web(MediaError("refused"))
    fetches = SharedFetches(fetch=web)
    for _ in range(4):
        with pytest.raises(MediaError, match="refused"):
            fetches.bytes_of(part(), LIMITS)
    assert web.asked == ["u"]


def test_nobody_waits_for_ever_for_a_defect() -> None:
    fetches = SharedFetches(fetch=Web(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        fetches.bytes_of(part(), LIMITS)
    with pytest.raises(CancelledError):
        fetches.bytes_of(part(), LIMITS)


@pytest.mark.parametrize(
    ("held_bytes", "urls"),
    [(2, ["a", "b", "c"]), (10**6, [str(n) for n in range(HELD_ITEMS + 1)])],
    ids=["bytes", "items"],
)
def test_what_nobody_comes_for_makes_room(held_bytes: int, urls: list[str]) -> None:
    """The oldest goes; who comes for it after all fetches again."""
    web = Web()
    fetches = SharedFetches(held_bytes=held_bytes, fetch=web)
    for url in urls:
        fetches.bytes_of(part(url), LIMITS)
    fetches.bytes_of(part(urls[-1]), LIMITS)
    assert web.asked == urls
    assert fetches.bytes_of(part(urls[0]), LIMITS) == urls[0].encode()
    assert web.asked == [*urls, urls[0]]


def test_refusals_that_nobody_else_comes_for_make_room() -> None:
    web = Web(MediaError("refused"))
    fetches = SharedFetches(fetch=web)
    urls = [str(n) for n in range(HELD_ITEMS + 1)]
    for url in [*urls, urls[-1], urls[0]]:
        with pytest.raises(MediaError, match="refused"):
            fetches.bytes_of(part(url), LIMITS)
    assert web.asked == [*urls, urls[0]]
