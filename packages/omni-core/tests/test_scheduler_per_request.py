"""The loop of stages that keep something of each request."""

from __future__ import annotations

from typing import Any

from omni_core.errors import RequestError
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Outbox, Work
from omni_core.scheduler.per_request import PerRequestScheduler
from omni_core.testing.fakes import running
from omni_core.types import Payload, RequestParams, TextDelta


class Speller(PerRequestScheduler[list[str]]):
    """Says the letters of what comes one by one; "!" cannot be said."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[list[str]] = []
        self.ended: set[str] = set()

    def open(self, work: Work, outbox: Outbox) -> list[str]:
        if "bad" in work.payload:
            raise RequestError("asked to fail")
        return list(work.payload.get("text", ""))

    def push(self, request_id: str, kept: list[str], data: Any, outbox: Outbox) -> None:
        kept.extend(data)

    def end(self, request_id: str, kept: list[str], outbox: Outbox) -> None:
        self.ended.add(request_id)

    def due(self) -> str | None:
        return next((rid for rid, kept in self.kept.items() if kept or rid in self.ended), None)

    def advance(self, request_id: str, kept: list[str], outbox: Outbox) -> None:
        if not kept:
            self.let_go(request_id)
            outbox.complete(request_id)
            return
        letter = kept.pop(0)
        if letter == "!":
            raise ValueError("cannot be said")
        outbox.emit(request_id, TextDelta(text=letter))

    def close(self, kept: list[str]) -> None:
        self.closed.append(kept)


class Taker(PerRequestScheduler[None]):
    """Knows no streams."""

    def open(self, work: Work, outbox: Outbox) -> None:
        return None


def work(request_id: str, payload: Payload) -> Work:
    return Work(request_id, RequestParams(), payload)


def test_a_request_is_opened_fed_advanced_and_let_go() -> None:
    speller = Speller()
    items = [work("a", {"text": "on"}), Chunk("a", "x", "e"), ChunksDone("a", "x")]
    with running(speller, items) as (_, outbox):
        outbox.wait_for("complete", "a")
        assert [c.value.text for c in outbox.of("a") if c.method == "emit"] == ["o", "n", "e"]
        assert speller.stats() == {"requests": 1, "waiting": 0, "running": 0}
        assert speller.closed == [[]]


def test_what_is_raised_fails_its_request_alone() -> None:
    speller = Speller()
    items = [
        work("bad", {"bad": True}),
        work("worse", {"text": "!x"}),
        work("good", {"text": "x"}),
        ChunksDone("good", "x"),
    ]
    with running(speller, items) as (_, outbox):
        outbox.wait_for("complete", "good")
        assert outbox.wait_for("fail", "bad").value.message == "asked to fail"
        assert outbox.wait_for("fail", "worse").value.status == 500
        assert not speller.kept
    assert speller.closed == [["x"], []]


def test_an_abort_lets_go_and_is_answered() -> None:
    speller = Speller()
    with running(speller, [work("a", {}), Abort("a"), Abort("never here")]) as (inbox, outbox):
        outbox.wait_for("released", "never here")
        inbox.put(Chunk("a", "x", "late"))
        inbox.put(ChunksDone("a", "x"))
        inbox.put(work("b", {}))
        inbox.put(ChunksDone("b", "x"))
        outbox.wait_for("complete", "b")
        assert [call.method for call in outbox.of("a")] == ["released"]
    assert speller.closed == [[], []]


def test_what_is_left_at_the_end_is_closed() -> None:
    speller = Speller()
    with running(speller, [work("a", {}), work("b", {"text": "b"})]) as (_, outbox):
        outbox.wait_for("emit", "b")
    assert len(speller.closed) == 2
    assert not speller.kept


def test_a_stream_to_a_stage_that_takes_none_is_an_error() -> None:
    with running(Taker(), [work("a", {}), Chunk("a", "x", 1)]) as (_, outbox):
        assert outbox.wait_for("fail", "a").value.message == "Taker takes no streams"
