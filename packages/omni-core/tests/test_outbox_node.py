"""One stage in its process: gathering, routing, ends and what a plugin's callables may break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ErrorInfo, MediaError, RequestError
from omni_core.messages import DataReady, Done, Emit, Fail, StageDoc, StreamChunk, StreamDone
from omni_core.scheduler.base import (
    Abort,
    Chunk,
    ChunksDone,
    Close,
    Inbox,
    InboxItem,
    Outbox,
    Work,
)
from omni_core.stage.node import StageNode
from omni_core.stage.outbox import StageOutbox
from omni_core.testing.fakes import RecordingLinks
from omni_core.types import AudioDelta, CodecDelta, Payload, RequestParams, TextDelta, Usage

BOTH = RequestParams(modalities=("text", "audio"))
TEXT = RequestParams(modalities=("text",))
PINS = {"say": "mouth", "sing": "mouth.1"}


# Callables that documents name. `HOOKS` lets each test say what they do.

HOOKS: dict[str, Callable[..., Any]] = {}


def route(params: RequestParams, payload: Payload) -> Any:
    return HOOKS["route"](params, payload)


def project(payload: Payload) -> Any:
    return HOOKS["project"](payload)


def wait_for(arrived: dict[str, Payload]) -> Any:
    return HOOKS["wait_for"](arrived)


def merge(arrived: dict[str, Payload]) -> Any:
    return HOOKS["merge"](arrived)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under a name that references can import."""
    import sys
    from types import ModuleType

    module = ModuleType("stage_hooks")
    for function in (route, project, wait_for, merge):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "stage_hooks", module)
    HOOKS.clear()


def doc(**fields: Any) -> StageDoc:
    base: dict[str, Any] = {
        "name": "mid",
        "factory": "x:y",
        "process": "p",
        "device": "cpu",
        "dtype": "float32",
        "next": ("say", "sing"),
        "serves": {"say": ("text",), "sing": ("audio",)},
    }
    return StageDoc(**{**base, **fields})


# -- the outbox


@pytest.fixture
def links() -> RecordingLinks:
    return RecordingLinks()


def outbox_of(links: RecordingLinks, params: RequestParams = BOTH, **fields: Any) -> StageOutbox:
    outbox = StageOutbox(doc(**fields), links)
    outbox.begin(entering(params))
    return outbox


def entering(params: RequestParams = BOTH, *ended: Done) -> DataReady:
    return DataReady(
        request_id="r",
        source="front",
        target="mid",
        params=params,
        payload={},
        pins=PINS,
        ended=ended,
    )


def end_of(stage: str) -> Done:
    return Done(request_id="r", stage=stage, start_s=1.0, first_output_s=None, end_s=2.0)


def targets(links: RecordingLinks) -> list[str]:
    return [m.target for m in links.delivered if isinstance(m, DataReady)]


def error_of(links: RecordingLinks) -> ErrorInfo:
    [fail] = links.reported
    assert isinstance(fail, Fail)
    assert (fail.request_id, fail.stage) == ("r", "mid")
    return fail.error


def test_send_goes_to_every_next_and_done_names_them(links: RecordingLinks) -> None:
    outbox = outbox_of(links)
    outbox.send("r", {"x": 1})
    outbox.done("r", Usage(text_tokens=3))
    assert targets(links) == ["say", "sing"]
    assert links.processes == ["mouth", "mouth.1"]
    assert {m.source for m in links.delivered} == {"mid"}
    assert [m.payload for m in links.delivered if isinstance(m, DataReady)] == [{"x": 1}] * 2
    [done] = links.reported
    assert isinstance(done, Done)
    assert (done.opened, done.usage.text_tokens, done.finish_reason) == (("say", "sing"), 3, None)
    assert done.first_output_s is not None
    assert done.start_s <= done.first_output_s <= done.end_s
    assert outbox.held() == 0


def test_a_request_passed_on_takes_the_ends_with_it(links: RecordingLinks) -> None:
    outbox = StageOutbox(doc(), links)
    outbox.begin(entering(BOTH, end_of("front")))
    outbox.begin(entering(BOTH, end_of("side")))
    outbox.pass_on("r", {"x": 1})
    assert (links.reported, outbox.held()) == ([], 0)
    say, sing = links.delivered
    assert isinstance(say, DataReady)
    assert isinstance(sing, DataReady)
    assert (say.payload, sing.payload, sing.ended) == ({"x": 1}, {"x": 1}, ())
    assert [done.stage for done in say.ended] == ["front", "side", "mid"]
    own = say.ended[-1]
    assert own.opened == ("say", "sing")
    assert own.first_output_s is not None
    outbox.pass_on("r", {"x": 2})  # it has left
    assert len(links.delivered) == 2


def test_who_ends_a_request_tells_of_the_ends_before(links: RecordingLinks) -> None:
    outbox = StageOutbox(doc(), links)
    outbox.begin(entering(BOTH, end_of("front")))
    outbox.complete("r")
    [done] = links.reported
    assert isinstance(done, Done)
    assert (done.stage, done.before) == ("mid", (end_of("front"),))


def test_a_request_passed_on_to_nobody_ends_here(links: RecordingLinks) -> None:
    outbox = outbox_of(links, next=())
    outbox.pass_on("r", {})
    [done] = links.reported
    assert isinstance(done, Done)
    assert (done.opened, links.delivered) == ((), [])


def test_what_cannot_be_passed_on_fails_its_request(links: RecordingLinks) -> None:
    outbox = outbox_of(links)
    outbox.send("r", {}, target="say")
    outbox.pass_on("r", {})
    assert "sent the request to 'say' twice" in error_of(links).message
    assert outbox.held() == 0


@pytest.mark.parametrize("streamed", [False, True])
def test_opening_a_stream_is_not_its_first_output(links: RecordingLinks, streamed: bool) -> None:
    outbox = outbox_of(links, stream_to=("say", "sing"))
    outbox.send("r", {})
    if streamed:
        outbox.stream("r", 1)
    outbox.stream_done("r")
    outbox.done("r")
    [done] = links.reported
    assert isinstance(done, Done)
    assert (done.first_output_s is not None) == streamed


def test_a_request_skips_targets_that_lead_to_nothing_it_wants(links: RecordingLinks) -> None:
    outbox_of(links, TEXT).send("r", {})
    assert targets(links) == ["say"]


def test_one_target_at_a_time(links: RecordingLinks) -> None:
    outbox = outbox_of(links)
    outbox.send("r", {}, target="sing")
    assert targets(links) == ["sing"]
    outbox.send("r", {}, target="say")
    assert targets(links) == ["sing", "say"]
    outbox.send("r", {}, target="nobody")
    assert len(links.delivered) == 2


def test_a_route_narrows_and_a_projection_reshapes(links: RecordingLinks) -> None:
    HOOKS["route"] = lambda params, payload: payload["to"]
    HOOKS["project"] = lambda payload: {"seen": payload["x"]}
    outbox = outbox_of(
        links,
        route_fn="stage_hooks:route",
        project_payload={"sing": "stage_hooks:project"},
    )
    outbox.send("r", {"to": ["sing"], "x": 5})
    [sent] = links.delivered
    assert isinstance(sent, DataReady)
    assert (sent.target, sent.payload, sent.params) == ("sing", {"seen": 5}, BOTH)


def test_chunks_go_only_to_opened_stream_targets(links: RecordingLinks) -> None:
    outbox = outbox_of(links, stream_to=("sing", "say"))
    outbox.stream("r", "too early")
    assert links.delivered == []
    outbox.send("r", {}, target="sing")
    outbox.stream("r", "c")
    outbox.stream("r", "not for sing", target="say")
    outbox.stream_done("r")
    assert links.delivered[1:] == [
        StreamChunk(request_id="r", source="mid", target="sing", data="c"),
        StreamDone(request_id="r", source="mid", target="sing"),
    ]


@pytest.mark.parametrize("end", ["done", "complete", "fail", "discard"])
def test_calls_after_the_end_do_nothing(links: RecordingLinks, end: str) -> None:
    outbox = outbox_of(links, stream_to=("sing",))
    outbox.send("r", {})
    getattr(outbox, end)("r", *([RequestError("no")] if end == "fail" else []))
    before = (len(links.delivered), len(links.reported))
    outbox.send("r", {})
    outbox.stream("r", 1)
    outbox.stream_done("r")
    outbox.emit("r", TextDelta(text="x"))
    outbox.done("r")
    outbox.complete("r")
    outbox.fail("r", RequestError("late"))
    assert (len(links.delivered), len(links.reported)) == before
    assert before[1] == (0 if end == "discard" else 1)


def test_complete_carries_the_reason(links: RecordingLinks) -> None:
    outbox_of(links).complete("r", finish_reason="length", usage=Usage(audio_tokens=2))
    [done] = links.reported
    assert isinstance(done, Done)
    assert (done.finish_reason, done.usage.audio_tokens, done.opened) == ("length", 2, ())
    assert done.first_output_s is None


def test_fail_keeps_what_the_client_needs(links: RecordingLinks) -> None:
    outbox_of(links).fail("r", MediaError("torn", param="images[0]"))
    error = error_of(links)
    assert (error.kind, error.status, error.param, error.stage) == (
        "MediaError",
        400,
        "images[0]",
        "mid",
    )


def test_a_route_to_a_stranger_fails_the_request(links: RecordingLinks) -> None:
    HOOKS["route"] = lambda params, payload: ["say", "elsewhere"]
    outbox = outbox_of(links, route_fn="stage_hooks:route")
    outbox.send("r", {})
    assert "route_fn of stage 'mid' returned elsewhere" in error_of(links).message
    assert links.delivered == []
    assert not outbox.holds("r")


@pytest.mark.parametrize("hook", ["route", "project"])
def test_a_callable_that_raises_fails_the_request(links: RecordingLinks, hook: str) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("gone")

    HOOKS.update({"route": lambda *_: ["say"], "project": lambda payload: payload, hook: broken})
    outbox = outbox_of(
        links, route_fn="stage_hooks:route", project_payload={"say": "stage_hooks:project"}
    )
    outbox.send("r", {})
    error = error_of(links)
    assert (error.kind, error.message, error.status) == ("StageError", "KeyError: 'gone'", 500)


def test_what_cannot_be_encoded_fails_the_request(links: RecordingLinks) -> None:
    outbox = outbox_of(links, stream_to=("say",))
    outbox.send("r", {})
    links.refuse = TypeError("set cannot cross a process")
    outbox.stream("r", {1})
    assert error_of(links).message == "TypeError: set cannot cross a process"


def test_sending_twice_to_one_target_fails_the_request(links: RecordingLinks) -> None:
    outbox = outbox_of(links)
    outbox.send("r", {}, target="say")
    outbox.send("r", {}, target="say")
    assert "sent the request to 'say' twice" in error_of(links).message
    assert targets(links) == ["say"]


@pytest.mark.parametrize(
    "event",
    [
        AudioDelta(samples=np.zeros(3), sample_rate=1),
        AudioDelta(samples=np.zeros((1, 3), np.float32), sample_rate=1),
        AudioDelta(samples=[0.0], sample_rate=1),  # type: ignore[arg-type]
        CodecDelta(codes=np.zeros((2, 2), np.int32)),  # type: ignore[arg-type]
        CodecDelta(codes=np.zeros(2, np.int64)),
    ],
)
def test_an_event_of_the_wrong_kind_fails_where_it_was_made(
    links: RecordingLinks, event: AudioDelta | CodecDelta
) -> None:
    outbox_of(links).emit("r", event)
    assert f"{type(event).__name__}." in error_of(links).message


def test_events_are_reported(links: RecordingLinks) -> None:
    event = AudioDelta(samples=np.zeros(3, np.float32), sample_rate=1)
    outbox_of(links).emit("r", event)
    assert links.reported == [Emit(request_id="r", stage="mid", event=event)]


# -- the node


class Listener:
    """A scheduler that keeps what arrives."""

    def __init__(self) -> None:
        self.items: list[InboxItem] = []
        self.outbox: Outbox | None = None
        self.raises: Exception | None = None

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        self.outbox = outbox
        while not any(isinstance(item, Close) for item in self.items):
            self.items += inbox.drain(block=True)
            if self.raises is not None:
                raise self.raises

    def stats(self) -> dict[str, float]:
        return {"requests": 0, "waiting": 0, "running": 0}


class Bench:
    """A node with what surrounds it. `received` stops it and tells what its scheduler got."""

    def __init__(self, **fields: Any) -> None:
        self.links, self.scheduler = RecordingLinks(), Listener()
        self.crashes: list[tuple[str, ErrorInfo]] = []
        self.node = StageNode(
            doc(**fields),
            self.scheduler,
            self.links,
            lambda stage, error: self.crashes.append((stage, error)),
        )

    def data(
        self,
        source: str,
        payload: Any = None,
        request_id: str = "r",
        ended: tuple[Done, ...] = (),
    ) -> None:
        self.node.receive(
            DataReady(
                request_id=request_id,
                source=source,
                target="mid",
                params=BOTH,
                payload={} if payload is None else payload,
                pins=PINS,
                ended=ended,
            )
        )

    def chunk(self, data: Any, source: str = "a") -> None:
        self.node.receive(StreamChunk(request_id="r", source=source, target="mid", data=data))

    def stream_done(self, source: str = "a") -> None:
        self.node.receive(StreamDone(request_id="r", source=source, target="mid"))

    def received(self) -> list[InboxItem]:
        self.node.close()
        self.node.start()
        self.node.join(10)
        return [item for item in self.scheduler.items if not isinstance(item, Close)]


GATHER = {
    "wait_for": ("a", "b"),
    "merge_fn": "stage_hooks:merge",
}


def test_a_payload_becomes_work() -> None:
    bench = Bench()
    bench.data("a", {"x": 1})
    assert bench.node.stats()["held"] == 1
    assert bench.received() == [Work("r", BOTH, {"x": 1})]
    assert bench.crashes == []


def test_payloads_are_merged_once_all_have_come() -> None:
    HOOKS["merge"] = lambda arrived: {"sum": sum(p["n"] for p in arrived.values())}
    bench = Bench(**GATHER)
    bench.data("b", {"n": 2})
    assert bench.node.stats()["held"] == 1
    bench.data("a", {"n": 40})
    assert bench.received() == [Work("r", BOTH, {"sum": 42})]


def test_wait_for_fn_decides_whom_to_wait_for() -> None:
    HOOKS["wait_for"] = lambda arrived: arrived["a"]["routed"] if "a" in arrived else None
    HOOKS["merge"] = lambda arrived: {"from": sorted(arrived)}
    bench = Bench(**GATHER, wait_for_fn="stage_hooks:wait_for")
    bench.data("b")
    bench.data("a", {"routed": ["a", "b"]})
    bench.data("a", {"routed": ["a"]}, request_id="q")
    works = bench.received()
    assert works == [
        Work("r", BOTH, {"from": ["a", "b"]}),
        Work("q", BOTH, {"from": ["a"]}),
    ]


def test_chunks_that_come_before_the_last_payload_are_kept_for_it() -> None:
    HOOKS["merge"] = lambda arrived: {}
    bench = Bench(**GATHER)
    bench.data("a")
    bench.chunk(1)
    bench.chunk(2)
    bench.stream_done()
    bench.data("b")
    bench.chunk(3, source="b")
    assert bench.received() == [
        Work("r", BOTH, {}),
        Chunk("r", "a", 1),
        Chunk("r", "a", 2),
        ChunksDone("r", "a"),
        Chunk("r", "b", 3),
    ]


@pytest.mark.parametrize(
    ("merged", "message"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (MediaError("torn"), "torn"),
        (None, "stage 'mid' got NoneType, not a dict"),
    ],
)
def test_a_merge_that_fails_fails_the_request(merged: object, message: str) -> None:
    def give(arrived: dict[str, Payload]) -> object:
        if isinstance(merged, Exception):
            raise merged
        return merged

    HOOKS["merge"] = give
    bench = Bench(**GATHER)
    bench.data("a")
    bench.data("b")
    assert error_of(bench.links).message == message
    assert bench.node.stats()["held"] == 0
    assert bench.received() == []


def test_a_second_payload_fails_the_request() -> None:
    bench = Bench()
    bench.data("a")
    bench.data("b")
    assert "second payload, from 'b'" in error_of(bench.links).message
    assert len(bench.received()) == 1


def test_a_payload_after_the_end_is_dropped() -> None:
    HOOKS["wait_for"] = lambda arrived: ["a"]
    HOOKS["merge"] = lambda arrived: {}
    bench = Bench(**GATHER, wait_for_fn="stage_hooks:wait_for")
    bench.data("a")
    assert len(bench.received()) == 1
    assert bench.scheduler.outbox is not None
    bench.scheduler.outbox.done("r")
    bench.data("b")
    assert bench.node.stats()["held"] == 0
    assert len(bench.links.reported) == 1


@pytest.mark.parametrize("aborted", [False, True])
def test_ends_that_come_with_a_late_payload_are_not_lost(aborted: bool) -> None:
    """Without them the request would never end."""
    bench = Bench()
    bench.data("a")
    assert len(bench.received()) == 1
    assert bench.scheduler.outbox is not None
    bench.scheduler.outbox.done("r")
    if aborted:
        bench.node.abort("r")
    bench.data("b", ended=(end_of("b"),))
    [_, *after] = bench.links.reported
    assert [type(report) for report in after] == ([] if aborted else [Fail])
    assert all("second payload, from 'b'" in fail.error.message for fail in after)  # type: ignore[union-attr]
    assert (bench.node.stats()["held"], bench.node.stats()["late"]) == (0, 1)


def test_chunks_of_strangers_are_dropped() -> None:
    bench = Bench()
    bench.chunk(1)
    bench.stream_done()
    assert bench.received() == []


@pytest.mark.parametrize("stage", ["before", "gathering", "working"])
def test_an_aborted_request_is_forgotten_and_stays_so(stage: str) -> None:
    HOOKS["merge"] = lambda arrived: {}
    bench = Bench(**GATHER)
    if stage != "before":
        bench.data("a")
    if stage == "working":
        bench.data("b")
    bench.node.abort("r")
    assert bench.node.stats()["held"] == 0
    bench.data("a")
    bench.data("b")
    bench.chunk(1)
    stats = bench.node.stats()
    assert (stats["late"], stats["gathering"]) == (3, 0)
    assert stats["tombstones"] == (2 if stage == "working" else 1)
    assert stats["inbox"] == (2 if stage == "working" else 1)
    items = bench.received()
    assert items[-1] == Abort("r")
    assert len(items) == (2 if stage == "working" else 1)
    assert bench.links.reported == []


def test_a_request_that_the_outbox_failed_is_still_aborted_in_the_loop() -> None:
    bench = Bench(next=("say",), route_fn="stage_hooks:route")
    HOOKS["route"] = lambda *_: ["elsewhere"]
    bench.data("a")
    assert bench.received() == [Work("r", BOTH, {})]
    outbox = bench.scheduler.outbox
    assert outbox is not None
    outbox.send("r", {})
    assert not bench.node.stats()["held"]
    assert "elsewhere" in error_of(bench.links).message
    bench.node.abort("r")
    assert bench.node._inbox.get(timeout_s=0) == Abort("r")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_raises_is_a_crash() -> None:
    bench = Bench()
    bench.scheduler.raises = ValueError("boom")
    bench.received()
    [(stage, error)] = bench.crashes
    assert (stage, error.message, error.stage) == ("mid", "ValueError: boom", "mid")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_ends_by_itself_is_a_crash() -> None:
    bench = Bench()
    bench.scheduler.items.append(Close())
    bench.node.start()
    bench.node.join(10)
    assert bench.crashes[0][1].message == "the loop ended without being asked to"


def test_an_abort_is_remembered_however_many_requests_come_after_it() -> None:
    bench = Bench()
    bench.data("a", request_id="aborted")
    bench.node.abort("aborted")
    for number in range(20_000):
        bench.data("a", request_id=str(number))
    late = bench.node.stats()["late"]
    bench.data("b", request_id="aborted")
    assert (late, bench.node.stats()["late"]) == (0, 1)
