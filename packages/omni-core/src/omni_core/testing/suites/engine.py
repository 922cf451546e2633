"""`EngineSuite` and `RunnerSuite`: a reply is the same whoever is decoded beside it, and frees all.

Imports torch only where a runner is put under an engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

from omni_core.engine.base import Engine, EngineRequest, StepOutput
from omni_core.testing.suites.base import Suite, missing

if TYPE_CHECKING:
    from omni_core.engine.base import ARRunner

MOST_STEPS: Final = 10_000
SEED: Final = 7


class EngineSuite(Suite):
    """Give `build`, which makes an engine, and `requests`: three or more of different lengths, with
    ids of their own, `max_tokens` of 3 or more, no end token on the way, and no need of chunks."""

    @pytest.fixture
    def build(self) -> Callable[[], Engine]:
        """A fresh engine every time it is called."""
        raise missing(self, "build")

    @pytest.fixture
    def requests(self) -> Sequence[EngineRequest]:
        """What it is asked."""
        raise missing(self, "requests")

    def test_replies_together_are_those_of_each_alone(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """Wherever in a step of others a request arrives."""
        assert len(requests) >= 3
        alone = {request.request_id: _run(build(), [request]) for request in requests}
        together = _run(build(), requests)
        staggered = _run(build(), requests, every=2)
        for request in requests:
            name = request.request_id
            expected = _tokens(alone[name], name)
            assert len(expected) >= 3
            assert _tokens(together, name) == expected
            assert _tokens(staggered, name) == expected

    def test_outputs_are_counted_from_zero_and_the_last_says_why(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """One output for every token, and one end."""
        outputs = _run(build(), requests)
        for request in requests:
            own = [o for o in outputs if o.request_id == request.request_id]
            assert [output.index for output in own] == list(range(len(own)))
            reasons = [output.finish_reason for output in own]
            assert reasons[:-1] == [None] * (len(own) - 1)
            assert reasons[-1] in ("stop", "length")

    def test_max_tokens_is_kept(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """And is told as "length"."""
        outputs = _run(build(), [_sampled(requests[0], max_tokens=2, ignore_eos=True)])
        assert [output.finish_reason for output in outputs] == [None, "length"]

    def test_a_seed_decides_the_reply(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """At a temperature, alone and in company."""
        seeded = _sampled(requests[0], temperature=1.0, seed=SEED)
        name = seeded.request_id
        expected = _tokens(_run(build(), [seeded]), name)
        assert _tokens(_run(build(), [seeded]), name) == expected
        assert _tokens(_run(build(), [*requests[1:], seeded]), name) == expected

    def test_an_abort_frees_everything_at_any_moment(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """And changes no other reply; the id is free at once, and an unknown one is ignored."""
        victim, other = requests[0], requests[1]
        expected = _tokens(_run(build(), [other]), other.request_id)
        for steps in range(4):
            engine = build()
            engine.abort("nobody")
            outputs: list[StepOutput] = []
            with engine.session():
                engine.add(victim)
                engine.add(other)
                for _ in range(steps):
                    outputs += engine.step() if engine.runnable() else []
                engine.abort(victim.request_id)
                outputs += [o for o in _drain(engine) if o.request_id != victim.request_id]
                assert _tokens(outputs, other.request_id) == expected
                _holds_nothing(engine)
                engine.add(victim)
                assert _drain(engine)

    def test_an_id_in_use_is_refused(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """Until the request has ended."""
        engine = build()
        with engine.session():
            engine.add(requests[0])
            with pytest.raises(ValueError, match=requests[0].request_id):
                engine.add(requests[0])
            _drain(engine)
            engine.add(requests[0])
            assert _drain(engine)

    def test_chunks_for_nobody_are_ignored(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """They may arrive after an abort."""
        engine = build()
        engine.feed("nobody", None)
        assert _run(engine, requests[:1])

    def test_an_engine_without_requests_rests(
        self, build: Callable[[], Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """Before the first, and after the last, when it holds nothing."""
        engine = build()
        assert not engine.runnable()
        assert engine.wakes_in_s() is None
        before = engine.stats().tokens
        outputs = _run(engine, requests)
        assert not engine.runnable()
        assert engine.stats().tokens - before == len(outputs)
        _holds_nothing(engine)


class RunnerSuite(EngineSuite):
    """As `EngineSuite`, for an `ARRunner` under the torch engine; give `runner` for `build`. It may
    be one runner for all laws: an engine closes every sequence that it opens."""

    @pytest.fixture
    def runner(self) -> ARRunner:
        """With nothing open."""
        raise missing(self, "runner")

    @pytest.fixture
    def build(self, runner: ARRunner) -> Callable[..., Engine]:
        """The torch engine over it; limits are those of `TorchEngineConfig`."""
        from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig

        return lambda **limits: TorchEngine(runner, TorchEngineConfig(**limits))

    def test_prompts_in_pieces_give_what_they_give_whole(
        self, build: Callable[..., Engine], requests: Sequence[EngineRequest]
    ) -> None:
        """However few rows a step may have."""
        expected = _run(build(), requests)
        longest = max(request.prompt_len for request in requests)
        for rows in {8, max(8, longest // 2)}:
            found = _run(build(max_batch_tokens=rows, max_running=2), requests)
            for request in requests:
                name = request.request_id
                assert _tokens(found, name) == _tokens(expected, name), f"{rows} rows a step"

    def test_a_prefix_that_is_cached_changes_nothing(
        self, build: Callable[..., Engine], requests: Sequence[EngineRequest], runner: ARRunner
    ) -> None:
        """Of runners that share KV."""
        if not runner.prefix_cache:
            pytest.skip("the runner shares no KV (ARRunner.prefix_cache)")
        engine = build()
        expected, again = _run(engine, requests), _run(engine, requests)
        for request in requests:
            name = request.request_id
            assert _tokens(again, name) == _tokens(expected, name)

    def test_every_sequence_that_is_opened_is_closed_once(
        self,
        build: Callable[..., Engine],
        requests: Sequence[EngineRequest],
        runner: ARRunner,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whether it ends or is aborted."""
        told: list[tuple[str, str]] = []
        for name in ("open", "close"):
            monkeypatch.setattr(runner, name, _noting(getattr(runner, name), name, told))
        engine = build()
        with engine.session():
            for request in requests:
                engine.add(request)
            while engine.runnable() and not engine.stats().running:
                engine.step()
            engine.step()
            engine.abort(requests[0].request_id)
            _drain(engine)
        opened = sorted(name for what, name in told if what == "open")
        assert opened == sorted(name for what, name in told if what == "close")
        assert len(set(opened)) == len(opened) == len(requests)


def _noting(method: Callable[[Any], Any], what: str, told: list[tuple[str, str]]) -> Any:
    def noted(seq: Any) -> Any:
        told.append((what, seq.request_id))
        return method(seq)

    return noted


def _sampled(request: EngineRequest, **sampling: Any) -> EngineRequest:
    import msgspec

    return dataclasses.replace(
        request, sampling=msgspec.structs.replace(request.sampling, **sampling)
    )


def _run(engine: Engine, requests: Iterable[EngineRequest], every: int = 0) -> list[StepOutput]:
    """All outputs; with `every`, a request is added after so many steps of those before it."""
    outputs: list[StepOutput] = []
    with engine.session():
        for request in requests:
            engine.add(request)
            for _ in range(every):
                outputs += engine.step() if engine.runnable() else []
        return outputs + _drain(engine)


def _drain(engine: Engine) -> list[StepOutput]:
    outputs: list[StepOutput] = []
    for _ in range(MOST_STEPS):
        if not engine.runnable():
            return outputs
        outputs += engine.step()
    raise AssertionError(f"the engine is not done after {MOST_STEPS} steps")


def _tokens(outputs: Sequence[StepOutput], name: str) -> list[int]:
    return [output.token for output in outputs if output.request_id == name]


def _holds_nothing(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.kv_pages_used) == (0, 0, 0)
