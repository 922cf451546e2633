"""`StageSuite` and `PreprocessorSuite`: a stage's loop ends every request once, and keeps none."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pytest

from omni_core.codec import Codec
from omni_core.errors import OmniError
from omni_core.messages import DataReady, StreamChunk
from omni_core.scheduler.base import Abort, InboxItem, Scheduler, Work
from omni_core.testing.fakes import Call, RecordingOutbox, running
from omni_core.testing.suites.base import Suite, missing
from omni_core.types import AudioDelta, RequestParams, TextDelta

Script: TypeAlias = Callable[[str], Sequence[InboxItem]]
"""(request id) -> what arrives in the inbox for this request: `Work`, then chunks if there are."""
ENDINGS: Final = ("done", "complete", "fail")
TOLERANCE: Final = 2e-4
PATIENCE_S: Final = 60.0
SETTLED_S: Final = 5.0
_BAD_REQUEST: Final = range(400, 500)


class StageSuite(Suite):
    """Give `build`, which makes the stage's scheduler, and `scripts`, two requests or more that end
    by themselves and differ."""

    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        """A fresh scheduler every time it is called; what it computes with may be shared."""
        raise missing(self, "build")

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        """The requests."""
        raise missing(self, "scripts")

    def test_every_request_ends_once_and_nothing_follows(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """With `done`, `complete` or `fail`."""
        assert len(scripts) > 1
        for calls in _together(build(), scripts).values():
            ends = [number for number, call in enumerate(calls) if call.method in ENDINGS]
            assert ends == [len(calls) - 1], [call.method for call in calls]

    def test_requests_together_are_answered_as_each_alone(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """Whoever shares a batch with them."""
        together = _together(build(), scripts)
        for number, script in enumerate(scripts):
            alone = _together(build(), [script])["r0"]
            assert_alike(together[f"r{number}"], alone)

    def test_a_request_again_is_answered_alike(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """By the stage that has answered it before, whatever it keeps; under the same id."""
        scheduler = build()
        with running(scheduler) as (inbox, outbox):
            for script in (scripts[0], scripts[0]):
                before = len(outbox.of("r"))
                for item in script("r"):
                    inbox.put(item)
                _ended(outbox, "r", after=before)
                if before:
                    calls = outbox.of("r")
                    assert_alike(calls[before:], calls[:before])

    def test_an_abort_is_answered_and_leaves_nothing(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """At every place in a request, before it, after it, and of one that never was; nothing
        follows the answer."""
        scheduler, items = build(), list(scripts[0]("r"))
        cuts = {0, 1, len(items) // 2, len(items)}
        with running(scheduler) as (inbox, outbox):
            for name, cut in ((f"cut{cut}", cut) for cut in cuts):
                for item in list(scripts[0](name))[:cut]:
                    inbox.put(item)
                inbox.put(Abort(name))
                outbox.wait_for("released", name, PATIENCE_S)
            for item in scripts[1]("last"):
                inbox.put(item)
            _ended(outbox, "last")
            _holds_nothing(scheduler)
            assert {outbox.of(f"cut{cut}")[-1].method for cut in cuts} == {"released"}

    def test_it_leaves_on_close_with_requests_in_it(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """`running` closes it, and waits."""
        items = list(scripts[0]("r"))
        with running(build(), items[: max(1, len(items) // 2)]):
            pass

    def test_it_counts_what_every_stage_counts(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """ "requests", "waiting" and "running", all numbers, and nothing is held at the end."""
        scheduler = build()
        assert {"requests", "waiting", "running"} <= set(scheduler.stats())
        items = [item for number, s in enumerate(scripts) for item in s(f"r{number}")]
        with running(scheduler, items) as (_, outbox):
            for number in range(len(scripts)):
                _ended(outbox, f"r{number}")
            _holds_nothing(scheduler)
        stats = scheduler.stats()
        assert stats["requests"] == len(scripts)
        assert all(isinstance(value, (int, float)) for value in stats.values())

    def test_what_it_hands_on_can_travel(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """Payloads and chunks are encoded and decoded as between two processes, and are alike."""
        codec = Codec()
        for calls in _together(build(), scripts).values():
            for call in calls:
                if call.method == "send":
                    given = _params(scripts)
                    sent = DataReady(
                        request_id="r", source="it", target="next", params=given, payload=call.value
                    )
                    assert_equal(codec.decode(codec.encode(sent), DataReady).payload, call.value)
                elif call.method == "stream":
                    chunk = StreamChunk(request_id="r", source="it", target="next", data=call.value)
                    assert_equal(codec.decode(codec.encode(chunk), StreamChunk).data, call.value)


class PreprocessorSuite(StageSuite):
    """As `StageSuite`, for the entry stage; give `bad`, too: requests that must be refused."""

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        """Requests with something wrong in them that a client can mend."""
        raise missing(self, "bad")

    def test_what_came_is_not_changed(
        self, build: Callable[[], Scheduler], scripts: Sequence[Script]
    ) -> None:
        """The payload may be used again: by a retry, or another stage of the process."""
        items = [item for number, s in enumerate(scripts) for item in s(f"r{number}")]
        works = [item for item in items if isinstance(item, Work)]
        before = [copy.deepcopy(work.payload) for work in works]
        with running(build(), items) as (_, outbox):
            for work in works:
                _ended(outbox, work.request_id)
        for work, payload in zip(works, before, strict=True):
            assert_equal(work.payload, payload)

    def test_bad_input_fails_its_own_request_as_the_callers_fault(
        self,
        build: Callable[[], Scheduler],
        scripts: Sequence[Script],
        bad: Sequence[Script],
    ) -> None:
        """With a status of 400 to 499 and a message, between requests that are served."""
        assert bad
        mixed = [scripts[0], *bad, scripts[1]]
        answered = _together(build(), mixed)
        for number in range(1, 1 + len(bad)):
            error = answered[f"r{number}"][-1].value
            assert isinstance(error, OmniError), f"bad request {number - 1} was not refused"
            assert error.status in _BAD_REQUEST, f"{error.status}: {error.message}"
            assert error.message
        for served in (answered["r0"], answered[f"r{len(mixed) - 1}"]):
            assert served[-1].method != "fail"


def assert_alike(found: Sequence[Call], expected: Sequence[Call]) -> None:
    """Of two answers: what was handed on, said and heard in all, and the end. Pieces of text and
    sound may be cut elsewhere."""
    assert [c.method for c in found if c.method != "emit"] == [
        c.method for c in expected if c.method != "emit"
    ]
    for one, other in zip(_solid(found), _solid(expected), strict=True):
        assert_equal(one.value, other.value)
    assert _text(found) == _text(expected)
    assert_equal(_sound(found), _sound(expected))


def assert_equal(found: Any, expected: Any, place: str = "it") -> None:
    """Deeply, and arrays of floats within the tolerance."""
    match expected:
        case Mapping():
            assert set(found) == set(expected), place
            for key, value in expected.items():
                assert_equal(found[key], value, f"{place}[{key!r}]")
        case list() | tuple():
            assert len(found) == len(expected), place
            for number, (one, other) in enumerate(zip(found, expected, strict=True)):
                assert_equal(one, other, f"{place}[{number}]")
        case _ if hasattr(expected, "dtype"):
            one, other = (np.asarray(_numpy(array)) for array in (found, expected))
            assert (one.dtype, one.shape) == (other.dtype, other.shape), place
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE, err_msg=place)
        case OmniError():
            assert (type(found), found.message) == (type(expected), expected.message), place
        case _:
            assert found == expected, place


def _numpy(array: Any) -> Any:
    """A torch tensor as numpy knows it; bfloat16, which it does not, as float32."""
    if isinstance(array, np.ndarray | np.generic):
        return array
    return (array.float() if array.is_floating_point() else array).cpu().numpy()


def _solid(calls: Sequence[Call]) -> Iterator[Call]:
    return (call for call in calls if call.method != "emit")


def _text(calls: Sequence[Call]) -> str:
    return "".join(c.value.text for c in calls if isinstance(c.value, TextDelta))


def _sound(calls: Sequence[Call]) -> Any:
    parts = [c.value.samples for c in calls if isinstance(c.value, AudioDelta)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _together(scheduler: Scheduler, scripts: Sequence[Script]) -> dict[str, list[Call]]:
    """{"r0": the calls for the first request, ...}, all of which were there from the start."""
    names = [f"r{number}" for number in range(len(scripts))]
    items = [item for name, script in zip(names, scripts, strict=True) for item in script(name)]
    with running(scheduler, items) as (_, outbox):
        for name in names:
            _ended(outbox, name)
    return {name: outbox.of(name) for name in names}


def _ended(outbox: RecordingOutbox, name: str, after: int = 0) -> None:
    """Wait for the end of a request, not looking at its first so many calls."""

    def has_ended(calls: Sequence[Call]) -> bool:
        own = [call for call in calls if call.request_id == name]
        return any(call.method in ENDINGS for call in own[after:])

    assert outbox.wait_until(has_ended, PATIENCE_S), f"{name!r} does not end: {outbox.of(name)}"


def _holds_nothing(scheduler: Scheduler) -> None:
    """Wait until it says so: the last call for a request may come before the loop's own books."""
    until_s = time.monotonic() + SETTLED_S
    while (stats := scheduler.stats())["running"] or stats["waiting"]:
        assert time.monotonic() < until_s, f"something is held: {stats}"
        time.sleep(0.001)


def _params(scripts: Sequence[Script]) -> RequestParams:
    [work, *_] = scripts[0]("r")
    return work.params if isinstance(work, Work) else RequestParams()
