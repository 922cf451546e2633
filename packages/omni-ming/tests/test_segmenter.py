"""The segmenter stage: utterances leave while the reply is still being written."""

from __future__ import annotations

import pytest

from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Inbox, Work
from omni_core.testing.fakes import running
from omni_core.types import RequestParams
from omni_ming.payloads import Utterance
from omni_ming.segmenter import Segmenter
from omni_ming.speech_text.front_end import FrontEnd, utterances

TEXT = "Hello, world! This is a test of the speech system. It has 3 sentences."


def say(inbox: Inbox, request_id: str, text: str) -> None:
    inbox.put(Chunk(request_id=request_id, source="thinker", data={"text": text}))


def test_utterances_leave_early_and_in_order() -> None:
    segmenter = Segmenter()
    with running(segmenter) as (inbox, outbox):
        for request_id in ("one", "two"):
            inbox.put(Work(request_id=request_id, params=RequestParams(), payload={}))
        for character in TEXT[:20]:
            say(inbox, "one", character)
            say(inbox, "two", character)
        first = outbox.wait_for("stream", "one")
        assert first.value["text"] == "Hello, world!"
        say(inbox, "one", TEXT[20:])
        inbox.put(ChunksDone(request_id="one", source="thinker"))
        outbox.wait_for("done", "one")
        inbox.put(Abort(request_id="two"))
        outbox.wait_for("released", "two")
        say(inbox, "two", TEXT)
    made = [call.value for call in outbox.of("one") if call.method == "stream"]
    assert made == utterances(TEXT)
    assert [call.method for call in outbox.of("one")][-2:] == ["stream_done", "done"]
    assert len([call for call in outbox.of("two") if call.method == "stream"]) == 1
    assert segmenter.stats()["running"] == 0


def test_a_text_that_cannot_be_read_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push = FrontEnd.push

    def or_fail(front_end: FrontEnd, text: str) -> list[Utterance]:
        if text == "bad":
            raise KeyError(text)
        return push(front_end, text)

    monkeypatch.setattr(FrontEnd, "push", or_fail)
    with running(Segmenter()) as (inbox, outbox):
        for request_id in ("bad", "good"):
            inbox.put(Work(request_id=request_id, params=RequestParams(), payload={}))
            say(inbox, request_id, request_id)
        say(inbox, "bad", TEXT)  # late: it has failed already
        for request_id in ("bad", "good"):
            inbox.put(ChunksDone(request_id=request_id, source="thinker"))
        outbox.wait_for("done", "good")
    assert [call.method for call in outbox.of("bad")] == ["send", "fail"]
    assert [call.value["text"] for call in outbox.of("good") if call.method == "stream"] == ["good"]
