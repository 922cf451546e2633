"""OmniScheduler over an engine that follows a script."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.errors import ContextLengthError, MediaError, OmniError, RequestError
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Outbox, Work
from omni_core.scheduler.omni import OmniScheduler
from omni_core.testing.fakes import Call, RecordingOutbox, ScriptedEngine, running
from omni_core.types import Grammar, RequestParams, SamplingParams


@dataclass
class Tokens:
    """An ARStage that streams token ids. Payload: {"script": tokens}."""

    broken: str = ""
    """The method that raises for request "bad"."""
    error: Exception = field(default_factory=lambda: KeyError("gone"))
    forgotten: list[str] = field(default_factory=list)
    enough: object = object()
    """The chunk after which there is nothing to generate."""

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        self._break("admit", work.request_id)
        if not work.payload["script"]:
            outbox.done(work.request_id)
            return None
        return EngineRequest(
            request_id=work.request_id,
            prompt_len=1,
            inputs=work.payload["script"],
            params=work.params,
            sampling=SamplingParams(max_tokens=8, temperature=0.0),
        )

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        self._break("hear", request.request_id)
        if chunk == self.enough:
            outbox.done(request.request_id)
        return chunk != self.enough

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        self._break("publish", request.request_id)
        outbox.stream(request.request_id, output.token)
        if output.finish_reason is not None:
            outbox.complete(request.request_id, finish_reason=output.finish_reason)

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)

    def _break(self, method: str, request_id: str) -> None:
        if (self.broken, "bad") == (method, request_id):
            raise self.error


def work(name: str, *script: int | None) -> Work:
    return Work(name, RequestParams(), {"script": list(script)})


def streamed(calls: list[Call]) -> list[Any]:
    return [call.value for call in calls if call.method == "stream"]


def test_requests_run_together_and_end_with_their_reason() -> None:
    engine, stage = ScriptedEngine(), Tokens()
    scheduler = OmniScheduler(engine, stage)
    with running(scheduler, [work("a", 1, 2, 3), work("b", 7)]) as (_, outbox):
        outbox.wait_for("complete", "a")
    assert streamed(outbox.of("a")) == [1, 2, 3]
    assert streamed(outbox.of("b")) == [7]
    assert outbox.of("a")[-1] == Call("complete", "a", "stop")
    assert [call.request_id for call in outbox.calls][:2] == ["a", "b"]
    stats = scheduler.stats()
    assert (stats["requests"], stats["running"], stats["steps"], stats["tokens"]) == (2, 0, 3, 4)
    assert stage.forgotten == []


def test_chunks_reach_the_engine_in_order_with_none_at_the_end() -> None:
    engine = ScriptedEngine()
    items = [work("a", None, 1), Chunk("a", "x", "c1"), ChunksDone("a", "x")]
    items += [Chunk("stranger", "x", "lost")]
    with running(OmniScheduler(engine, Tokens()), items) as (_, outbox):
        outbox.wait_for("complete", "a")
    assert engine.fed == [("a", "c1"), ("a", None)]


def test_a_chunk_may_end_a_request() -> None:
    engine, stage = ScriptedEngine(), Tokens(enough="enough")
    items = [work("a", None, 1), Chunk("a", "x", "enough"), Chunk("a", "x", "late")]
    with running(OmniScheduler(engine, stage), items) as (_, outbox):
        outbox.wait_for("done", "a")
    assert engine.fed == []
    assert engine.aborted == stage.forgotten == ["a"]


def test_the_loop_waits_for_chunks_without_stepping() -> None:
    engine = ScriptedEngine()
    with running(OmniScheduler(engine, Tokens()), [work("a", 1, None, 2)]) as (inbox, outbox):
        outbox.wait_for("stream", "a")
        assert engine.stats().steps == 1
        inbox.put(Chunk("a", "x", "go"))
        outbox.wait_for("complete", "a")
    assert engine.stats().steps == 2


def test_the_loop_goes_on_by_itself_when_the_engine_said_it_would() -> None:
    class Holding(ScriptedEngine):
        asked = 0

        def runnable(self) -> bool:
            return super().runnable() and self.asked > 0

        def wakes_in_s(self) -> float | None:
            self.asked += super().runnable()
            return 0.001 if self.asked else None

    engine = Holding()
    with running(OmniScheduler(engine, Tokens()), [work("a", 1)]) as (_, outbox):
        outbox.wait_for("complete", "a")
    assert engine.asked == 1


def test_a_rest_ends_when_something_comes() -> None:
    engine = ScriptedEngine()
    scheduler = OmniScheduler(engine, Tokens(), rest_s=lambda: 60.0)
    with running(scheduler, [work("a", 1, 2)]) as (inbox, outbox):
        outbox.wait_for("stream", "a")
        assert engine.stats().steps == 1
        inbox.put(Chunk("stranger", "x", "anything"))
        outbox.wait_for("complete", "a")


def test_a_rest_ends_by_itself() -> None:
    rests = [0.001, 0.001]
    scheduler = OmniScheduler(ScriptedEngine(), Tokens(), rest_s=lambda: rests.pop())
    with running(scheduler, [work("a", 1, 2, 3)]) as (_, outbox):
        outbox.wait_for("complete", "a")
    assert rests == []


def test_what_admission_sends_leaves_before_the_step() -> None:
    class Last(ScriptedEngine):
        def step(self) -> list[StepOutput]:
            log.append("step")
            inbox.put(Close())
            return super().step()

    log: list[str] = []
    inbox = Inbox(before_look=lambda: log.append("look"))
    inbox.put(work("a", 1))
    OmniScheduler(Last(), Tokens()).run(inbox, RecordingOutbox())
    assert log[:3] == ["look", "look", "step"]


def test_nothing_to_generate_never_reaches_the_engine() -> None:
    engine = ScriptedEngine()
    scheduler = OmniScheduler(engine, Tokens())
    with running(scheduler, [work("a")]) as (_, outbox):
        outbox.wait_for("done", "a")
    assert engine.stats().steps == 0
    assert scheduler.stats()["requests"] == 1


def test_an_abort_frees_the_engine_and_the_stage() -> None:
    engine, stage = ScriptedEngine(), Tokens()
    scheduler = OmniScheduler(engine, stage)
    items = [work("a", None, 1), Abort("a"), Abort("never seen"), work("b", 2)]
    with running(scheduler, items) as (_, outbox):
        outbox.wait_for("complete", "b")
    assert engine.aborted == ["a"]
    assert stage.forgotten == ["a"]
    assert outbox.of("a") == [Call("released", "a")]
    assert outbox.of("never seen") == [Call("released", "never seen")]
    assert scheduler.stats()["running"] == 0


def test_close_aborts_what_is_left() -> None:
    engine, stage = ScriptedEngine(), Tokens()
    with running(OmniScheduler(engine, stage), [work("a", 1, None, 2)]) as (_, outbox):
        outbox.wait_for("stream", "a")
    assert engine.aborted == ["a"]
    assert stage.forgotten == ["a"]


def test_a_refused_admission_fails_alone() -> None:
    error = ContextLengthError("too long")
    engine, stage = ScriptedEngine(refused={"bad": error}), Tokens()
    with running(OmniScheduler(engine, stage), [work("bad", 1), work("b", 2, 3)]) as (_, outbox):
        outbox.wait_for("complete", "b")
    assert outbox.of("bad") == [Call("fail", "bad", error)]
    assert stage.forgotten == ["bad"]
    assert streamed(outbox.of("b")) == [2, 3]


@pytest.mark.parametrize("method", ["admit", "publish"])
@pytest.mark.parametrize("error", [KeyError("gone"), MediaError("torn")], ids=type)
def test_a_stage_that_raises_fails_one_request(method: str, error: Exception) -> None:
    engine, stage = ScriptedEngine(), Tokens(broken=method, error=error)
    scheduler = OmniScheduler(engine, stage)
    with running(scheduler, [work("bad", 1, 2), work("b", 3, 4)]) as (_, outbox):
        outbox.wait_for("complete", "b")
    [failed] = outbox.of("bad")
    assert failed.method == "fail"
    assert (
        failed.value is error if isinstance(error, OmniError) else "KeyError" in str(failed.value)
    )
    assert stage.forgotten == ["bad"]
    assert streamed(outbox.of("b")) == [3, 4]
    assert scheduler.stats()["running"] == 0


def test_an_id_still_in_use_fails_the_second_request() -> None:
    with running(OmniScheduler(ScriptedEngine(), Tokens()), [work("a", None, 1)]) as (
        inbox,
        outbox,
    ):
        inbox.put(work("a", 1))
        assert "ValueError" in outbox.wait_for("fail", "a").value.message


def test_a_broken_step_ends_the_loop() -> None:
    class Broken(ScriptedEngine):
        def step(self) -> list[StepOutput]:
            raise RuntimeError("device lost")

    with (
        pytest.raises(RuntimeError, match="device lost"),
        running(OmniScheduler(Broken(), Tokens()), [work("a", 1)]),
    ):
        pass


@dataclass
class HeldGrammars:
    """`Grammars` that answer when they are told to."""

    asked: list[Any] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)
    closed: bool = False

    def submit(self, grammar: Grammar, done: Any) -> Future[None]:
        self.asked.append(done)
        self.futures.append(Future())
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True


class WithGrammar(Tokens):
    """Requests with a grammar if they are called "held"."""

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        request = super().admit(work, outbox)
        if request is None or not work.request_id.startswith("held"):
            return request
        grammar = Grammar(kind="json_schema", text="{}")
        return replace(request, sampling=SamplingParams(max_tokens=8, grammar=grammar))


def test_a_request_waits_for_its_grammar_and_others_do_not() -> None:
    engine, grammars = ScriptedEngine(), HeldGrammars()
    scheduler = OmniScheduler(engine, WithGrammar(), grammars=grammars)  # type: ignore[arg-type]
    items = [work("held", None, 1), work("gone", 9), work("held too", 5), work("held last", 6)]
    with running(scheduler, items) as (inbox, outbox):
        outbox.wait_for("complete", "gone")
        inbox.put(Chunk("held", "other", "meanwhile"))
        inbox.put(Abort("held last"))
        outbox.wait_for("released", "held last")
        assert [future.cancelled() for future in grammars.futures] == [False, False, True]
        assert not outbox.of("held")
        first, second, third = grammars.asked
        third("too late")
        second(RequestError("no such schema", param="response_format"))
        first("compiled")
        outbox.wait_for("complete", "held")
        outbox.wait_for("fail", "held too")
    assert engine.fed == [("held", "meanwhile")]
    assert streamed(outbox.of("held")) == [1]
    [failed] = outbox.of("held too")
    assert failed.value.param == "response_format"
    assert not outbox.of("held last")[1:]
    assert grammars.closed


def test_a_grammar_nobody_can_keep_to_is_refused() -> None:
    with running(OmniScheduler(ScriptedEngine(), WithGrammar()), [work("held", 1)]) as (_, outbox):
        outbox.wait_for("fail", "held")
    [failed] = outbox.of("held")
    assert (failed.value.status, failed.value.param) == (400, "grammar")
