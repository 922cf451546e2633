"""The loop of autoregressive stages: inbox to engine, engine steps to outbox.

Knows engines and requests. Knows nothing of models: an `ARStage` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Final, Protocol, assert_never

from omni_core.engine.base import Engine, EngineRequest, RequestFailedError, StepOutput
from omni_core.engine.grammar import Grammars, TokenGrammar
from omni_core.errors import OmniError, RequestError, as_omni_error
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

COMPILED: Final = "(compiled grammar)"
"""The source of the chunk by which a grammar's thread tells the loop; no stage is called so."""


class ARStage(Protocol):
    """What is special about one AR stage: how payloads become engine requests and outputs leave."""

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """Describe the request to the engine; None if there is nothing to generate and the stage
        has already ended the request through `outbox`."""

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        """A chunk came for a request, or None: no more will come. False if nothing is to be
        generated any more and the stage has ended the request through `outbox`."""

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """Send on what one step produced. When `output.finish_reason` is set, also end the request
        (`stream_done`, then `done` or `complete`)."""

    def forget(self, request_id: str) -> None:
        """The request was aborted, or failed: drop what is kept for it."""


class OmniScheduler:
    """Continuous batching: receive, step the engine, publish, until `Close`.

    What the stage raises for one request fails that request; what a step raises ends the loop.
    """

    def __init__(
        self,
        engine: Engine,
        stage: ARStage,
        more_stats: Callable[[], Mapping[str, float]] = dict,
        rest_s: Callable[[], float] = float,
        grammars: Grammars | None = None,
    ) -> None:
        """`more_stats` are numbers of whatever the runner uses; `stats` adds them to its own.
        `rest_s` says how long the next step may wait for others to run, unless something comes.
        Without `grammars`, requests with one are refused."""
        self._engine = engine
        self._stage = stage
        self._more_stats = more_stats
        self._rest_s = rest_s
        self._grammars = grammars
        self._compiling: dict[str, tuple[Future[None], list[object]]] = {}
        """Requests whose grammar is compiled, with the chunks that came meanwhile."""
        self._requests: dict[str, EngineRequest] = {}
        self._entered = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """The main loop; sleeps only while the engine has nothing it can do, until something comes
        or the engine wants to go on."""
        with self._engine.session():
            while self._receive(inbox, outbox):
                if self._engine.runnable():
                    self._step(outbox)
            for request_id in list(self._requests):
                self._drop(request_id)
        if self._grammars is not None:
            self._grammars.close()

    def stats(self) -> dict[str, float]:
        """Engine occupancy beside the stage's own counters."""
        engine = asdict(self._engine.stats())
        mine = {"requests": self._entered, "running": len(self._requests)}
        return {**engine, **self._more_stats(), **mine}

    def _receive(self, inbox: Inbox, outbox: Outbox) -> bool:
        """Take what has come, waiting while there is nothing to do. False to leave."""
        idle = not self._engine.runnable()
        timeout_s = self._engine.wakes_in_s() if idle else self._rest_s()
        items = inbox.drain(block=idle or bool(timeout_s), timeout_s=timeout_s)
        while items:
            if not self._take(items, inbox, outbox):
                return False
            entered = any(isinstance(item, Work) for item in items)
            # What admission sent on leaves before a step: whom it opens can get ready meanwhile.
            items = inbox.drain(block=False) if entered else []
        return True

    def _take(self, items: Sequence[InboxItem], inbox: Inbox, outbox: Outbox) -> bool:
        for item in items:
            match item:
                case Work():
                    self._admit(item, inbox, outbox)
                case Chunk(source=source) if source == COMPILED:
                    self._enter(item.request_id, item.data, outbox)
                case Chunk():
                    self._feed(item.request_id, item.data, outbox)
                case ChunksDone():
                    self._feed(item.request_id, None, outbox)
                case Abort():
                    self._drop(item.request_id)
                    outbox.released(item.request_id)
                case Close():
                    return False
                case _:
                    assert_never(item)
        return True

    def _admit(self, work: Work, inbox: Inbox, outbox: Outbox) -> None:
        self._entered += 1
        try:
            request = self._stage.admit(work, outbox)
            if request is None:
                return
            if request.sampling.grammar is None:
                self._engine.add(request)
            else:
                self._compile(request, inbox)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            self._stage.forget(work.request_id)
            outbox.fail(work.request_id, as_omni_error(exc))
            return
        self._requests[work.request_id] = request

    def _compile(self, request: EngineRequest, inbox: Inbox) -> None:
        """The engine gets the request when its grammar is compiled, and goes on meanwhile."""
        grammar = request.sampling.grammar
        if self._grammars is None or grammar is None:
            raise RequestError("this model's replies cannot be held to a grammar", param="grammar")

        def tell(result: TokenGrammar | OmniError) -> None:
            inbox.put(Chunk(request.request_id, COMPILED, result))

        self._compiling[request.request_id] = (self._grammars.submit(grammar, tell), [])

    def _enter(self, request_id: str, compiled: TokenGrammar | OmniError, outbox: Outbox) -> None:
        """A grammar is compiled, or refused; the request may have ended since."""
        compiling = self._compiling.pop(request_id, None)
        if compiling is None:
            return
        if isinstance(compiled, OmniError):
            self._fail(request_id, compiled, outbox)
            return
        request = self._requests[request_id] = replace(
            self._requests[request_id], constraint=compiled
        )
        try:
            self._engine.add(request)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            self._fail(request_id, as_omni_error(exc), outbox)
            return
        for chunk in compiling[1]:
            self._engine.feed(request_id, chunk)

    def _feed(self, request_id: str, chunk: object, outbox: Outbox) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        try:
            if not self._stage.hear(request, chunk, outbox):
                self._drop(request_id)
            elif request_id in self._compiling:
                self._compiling[request_id][1].append(chunk)
            else:
                self._engine.feed(request_id, chunk)
        except Exception as exc:  # noqa: BLE001 - request edge: a bad chunk fails its request
            self._fail(request_id, as_omni_error(exc), outbox)

    def _step(self, outbox: Outbox) -> None:
        try:
            outputs = self._engine.step()
        except RequestFailedError as failed:
            self._fail(failed.request_id, failed.error, outbox)
            return
        for output in outputs:
            self._publish(output, outbox)

    def _publish(self, output: StepOutput, outbox: Outbox) -> None:
        if output.error is not None:
            self._fail(output.request_id, output.error, outbox)
            return
        request = self._requests[output.request_id]
        if output.finish_reason is not None:
            del self._requests[output.request_id]
        try:
            self._stage.publish(request, output, outbox)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad reply fails alone
            self._fail(output.request_id, as_omni_error(exc), outbox)

    def _fail(self, request_id: str, error: OmniError, outbox: Outbox) -> None:
        self._requests.pop(request_id, None)
        self._stop_compiling(request_id)
        self._engine.abort(request_id)
        self._stage.forget(request_id)
        outbox.fail(request_id, error)

    def _stop_compiling(self, request_id: str) -> None:
        if (compiling := self._compiling.pop(request_id, None)) is not None:
            compiling[0].cancel()

    def _drop(self, request_id: str) -> None:
        self._stop_compiling(request_id)
        if self._requests.pop(request_id, None) is not None:
            self._engine.abort(request_id)
            self._stage.forget(request_id)
