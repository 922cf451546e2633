"""The engine on SGLang: upstream plans, computes and keeps KV; we admit, draw, and say when a reply
ends.

Knows the order of one step: admit, plan, compute and draw, resolve, settle. Knows nothing of models
(an `SglangRunner` does), nor of upstream but for what `upstream` offers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import compress
from typing import Any

import msgspec
import torch

from omni_core.engine.base import SGLANG, EngineRequest, EngineStats, Segment, Sequence, StepOutput
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.common.admission import check_request
from omni_core.engine.common.inference import inference
from omni_core.engine.common.learn import learn
from omni_core.engine.common.tokens import Draw, TokenSampler
from omni_core.engine.common.transfer import HostCopy, upload
from omni_core.engine.sglang_engine.config import SPARE_PAGES, SglangEngineConfig, pages_for
from omni_core.engine.sglang_engine.model import SglangRunner
from omni_core.engine.sglang_engine.residents import Residents
from omni_core.engine.sglang_engine.upstream import InProcessScheduler, Req, ScheduleBatch


class _Rows(msgspec.Struct, frozen=True, eq=False):
    """What a batch computes, as the runner knows it. Good for many steps in turn while the same
    sequences decode."""

    reqs: list[Req]
    """Who computes one row each; nobody if this is no decode step."""
    segments: list[Segment]
    sampled: list[ActiveSequence]
    seqs: list[Sequence]
    """Those of `sampled`."""
    places: torch.Tensor | None
    """Theirs in the batch; None if all sample."""


NOTHING = _Rows([], [], [], [], None)


class _Flight(msgspec.Struct, frozen=True, eq=False):
    """A step that was launched and whose tokens the host has not seen."""

    batch: ScheduleBatch
    result: Any
    """Upstream's."""
    rows: _Rows
    draw: Draw | None
    """None if nobody samples."""
    hidden: torch.Tensor
    """Of those that sample."""


class SglangEngine:
    """`Engine` over upstream's scheduler in this process."""

    capabilities = SGLANG

    def __init__(
        self, scheduler: InProcessScheduler, runner: SglangRunner, config: SglangEngineConfig
    ) -> None:
        """`scheduler` has loaded the model that `runner` belongs to."""
        rows = scheduler.rows
        self._device = device = torch.device(scheduler.device)
        self.max_running = config.max_running
        runner.attach(scheduler.module, rows=rows, slots=scheduler.slots)
        self._scheduler = scheduler
        self._runner = runner
        self._pages_total = pages_for(scheduler.kv_tokens) - SPARE_PAGES
        self._sampler = TokenSampler(
            rows, runner.vocab_size, runner.suppress, device, HostCopy, scheduler.agreed
        )
        self._residents = Residents(scheduler, runner, self._sampler.seat, config.max_running)
        scheduler.attend_to(
            draw=self._draw,
            ready=self._residents.is_ready if runner.feedback else None,
            retracted=self._residents.retract,
        )
        self._stalled = False
        """Upstream found nothing to do, and nothing has changed since."""
        self._looks_ahead = config.looks_ahead
        self._rows = NOTHING
        """Of the newest step, while all of them go on."""
        self._drawn: Draw | None = None
        """Of the step under way, see `_Flight`."""
        self._flight: _Flight | None = None
        self._steps = self._lookahead_steps = self._tokens = self._cut_prompts = 0

    def session(self) -> AbstractContextManager[object]:
        """See `Engine`."""
        return torch.inference_mode()

    def add(self, request: EngineRequest) -> None:
        """See `Engine`."""
        if request.request_id in self._residents:
            raise ValueError(f"request {request.request_id!r} is still in the engine")
        check_request(
            request,
            feedback=self._runner.feedback,
            max_len=self._runner.kv.max_len,
            vocab_size=self._runner.vocab_size,
            pages_for=pages_for,
            pages_total=self._pages_total,
        )
        self._residents.add(request)
        self._stalled = False

    def feed(self, request_id: str, chunk: Any) -> None:
        """See `Engine`."""
        with inference():
            self._residents.feed(request_id, chunk)
        self._stalled = False

    def runnable(self) -> bool:
        """See `Engine`."""
        return self._flight is not None or not (self._stalled or self._residents.empty)

    def wakes_in_s(self) -> float | None:
        """See `Engine`: never by itself."""
        return None

    def step(self) -> list[StepOutput]:
        """See `Engine`."""
        with inference():
            return self._step()

    def abort(self, request_id: str) -> None:
        """See `Engine`."""
        with inference():
            self._residents.drop(request_id)
        self._stalled, self._rows = False, NOTHING

    def load_weights(self, directory: str) -> None:
        """Take the module's tensors from a directory as it was loaded from; between requests."""
        self._scheduler.load_weights(directory)

    def forget_prefixes(self) -> None:
        """See `Engine`."""
        if not self._residents.empty:
            raise ValueError("prefixes cannot be forgotten while there are requests")
        with inference():
            self._scheduler.forget_prefixes()
        self._rows = NOTHING

    def stats(self) -> EngineStats:
        """See `Engine`."""
        tokens = self._scheduler.token_counts()
        return EngineStats(
            waiting=self._residents.waiting,
            running=self._residents.running,
            kv_pages_used=pages_for(tokens.used),
            kv_pages_total=self._pages_total,
            kv_pages_cached=pages_for(tokens.cached),
            steps=self._steps,
            tokens=self._tokens,
            prompt_tokens=self._residents.prompt_tokens,
            prefix_hit_tokens=self._residents.prefix_hit_tokens,
            cut_prompts=self._cut_prompts,
            retractions=self._residents.retractions,
            lookahead_steps=self._lookahead_steps,
        )

    def _step(self) -> list[StepOutput]:
        self._residents.admit()
        batch = self._scheduler.plan(in_flight=self._flight is not None)
        if batch is None:
            self._stalled = self._flight is None
            self._rows = NOTHING
            return self._land()
        decodes = batch.forward_mode.is_decode()
        if not (decodes and self._looks_ahead) or self._is_constrained(batch):
            return self._land() + self._resolve(self._launch(batch, decodes))
        before, self._flight = self._flight, self._launch(batch, decodes)
        if before is None:
            return []
        self._lookahead_steps += 1
        return self._resolve(before)

    def _is_constrained(self, batch: ScheduleBatch) -> bool:
        """Whether somebody must know its newest token to draw the next. Upstream steps for all or
        for none, so the whole batch does not look ahead then."""
        residents = (self._residents[req.rid] for req in batch.reqs)
        return any(r.active.seq.request.constraint is not None for r in residents)

    def _launch(self, batch: ScheduleBatch, decodes: bool) -> _Flight:
        """Run the forward and draw."""
        if not (decodes and batch.reqs == self._rows.reqs):
            self._rows = self._rows_of(batch, decodes)
        rows = self._rows
        self._runner.begin(rows.segments, decode=decodes)
        self._steps += 1
        self._drawn = None
        result = self._scheduler.run_batch(batch)
        for segment in rows.segments:
            segment.start += segment.count
            segment.seq.computed = segment.start
        for active in rows.sampled:
            active.in_flight += 1
        hidden = self._runner.hidden()
        if rows.places is not None:
            hidden = hidden[rows.places]
        batch = batch.copy() if self._looks_ahead else batch
        return _Flight(batch, result, rows, self._drawn, hidden)

    def _rows_of(self, batch: ScheduleBatch, decodes: bool) -> _Rows:
        parts = self._scheduler.parts(batch)
        residents = [self._residents[part.request_id] for part in parts]
        for resident, part in zip(residents, parts, strict=True):
            self._residents.place(resident, part)
        self._cut_prompts += not all(part.samples for part in parts)
        samples = [
            part.samples and part.start + part.count >= resident.active.seq.request.prompt_len
            for resident, part in zip(residents, parts, strict=True)
        ]
        sampled = [resident.active for resident in compress(residents, samples)]
        places = [place for place, drawn in enumerate(samples) if drawn]
        return _Rows(
            reqs=list(batch.reqs) if decodes else [],
            segments=[
                Segment(seq=r.active.seq, start=p.start, count=p.count, samples=p.samples)
                for r, p in zip(residents, parts, strict=True)
            ],
            sampled=sampled,
            seqs=[active.seq for active in sampled],
            places=None if all(samples) else upload(places, self._device),
        )

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Tokens of all places; 0 where nothing is sampled."""
        going, places = self._rows.sampled, self._rows.places
        if places is None:
            self._drawn = self._sampler.draw(going, logits.float())
            return self._sampler.decode_rows(going)[1]
        tokens = logits.new_zeros(len(logits), dtype=torch.long)
        if going:
            self._drawn = self._sampler.draw(going, logits[places].float())
            tokens[places] = self._sampler.decode_rows(going)[1]
        return tokens

    def _land(self) -> list[StepOutput]:
        """Resolve the step in flight, if there is one."""
        flight, self._flight = self._flight, None
        return [] if flight is None else self._resolve(flight)

    def _resolve(self, flight: _Flight) -> list[StepOutput]:
        """Learn the tokens of a step, decide on them, and tell upstream who has ended. What ended
        after the launch was computed once too often; nothing of that is kept."""
        outputs = [] if flight.draw is None else self._learn(flight, flight.draw)
        self._scheduler.settle(flight.batch, flight.result)
        return outputs

    def _learn(self, flight: _Flight, draw: Draw) -> list[StepOutput]:
        rows, is_here = flight.rows, self._residents.__contains__ if self._looks_ahead else None
        outputs = learn(draw, rows.sampled, rows.seqs, flight.hidden, self._runner.collect, is_here)
        self._tokens += len(outputs)
        for output in outputs:
            if output.finish_reason is not None:
                self._residents.end(output.request_id)
                self._rows = NOTHING
        return outputs
