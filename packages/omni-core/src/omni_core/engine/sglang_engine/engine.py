"""The engine on SGLang: upstream plans, computes and keeps KV; we admit, draw, and say when a reply
ends.

Knows the order of one step: admit, plan, compute and draw, resolve, settle. Knows nothing of models
(an `SglangRunner` does), nor of upstream but for what `upstream` offers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import compress, starmap
from typing import Any

import msgspec
import torch

from omni_core.engine.base import SGLANG, EngineRequest, EngineStats, Segment, StepOutput
from omni_core.engine.sglang_engine.config import SPARE_PAGES, SglangEngineConfig, pages_for
from omni_core.engine.sglang_engine.model import SglangRunner
from omni_core.engine.sglang_engine.residents import Residents
from omni_core.engine.sglang_engine.upstream import InProcessScheduler, Req, ScheduleBatch
from omni_core.engine.torch_engine.active import ActiveSequence
from omni_core.engine.torch_engine.admission import check_request
from omni_core.engine.torch_engine.tokens import Draw, TokenSampler
from omni_core.engine.torch_engine.transfer import HostCopy, upload


class _Flight(msgspec.Struct, frozen=True, eq=False):
    """A step that was launched and whose tokens the host has not seen."""

    batch: ScheduleBatch
    result: Any
    """Upstream's."""
    sampled: list[tuple[int, ActiveSequence]]
    """(place in the batch, sequence) of those that sample."""
    draw: Draw | None
    """None if nobody does."""
    hidden: torch.Tensor


class SglangEngine:
    """`Engine` over upstream's scheduler in this process."""

    capabilities = SGLANG

    def __init__(
        self, scheduler: InProcessScheduler, runner: SglangRunner, config: SglangEngineConfig
    ) -> None:
        """`scheduler` has loaded the model that `runner` belongs to."""
        rows = scheduler.rows
        device = torch.device(scheduler.device)
        self.max_running = config.max_running
        runner.attach(scheduler.module, rows=rows, slots=scheduler.slots)
        scheduler.attend_to(draw=self._draw, ready=self._ready)
        self._scheduler = scheduler
        self._runner = runner
        self._pages_total = pages_for(scheduler.kv_tokens) - SPARE_PAGES
        self._sampler = TokenSampler(rows, runner.vocab_size, runner.suppress, device, HostCopy)
        self._residents = Residents(scheduler, runner, self._sampler.seat, config.max_running)
        self._stalled = False
        """Upstream found nothing to do, and nothing has changed since."""
        self._looks_ahead = config.looks_ahead
        self._sampled: list[tuple[int, ActiveSequence]] = []
        self._drawn: Draw | None = None
        """Of the step under way, see `_Flight`."""
        self._steady: list[Req] = []
        """Who computed one row each in the last step; nobody if it was no decode step."""
        self._rows: list[Segment] = []
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
        with _inference():
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
        with _inference():
            return self._step()

    def abort(self, request_id: str) -> None:
        """See `Engine`."""
        with _inference():
            self._residents.drop(request_id)
        self._stalled = False

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
        self._residents.retract(self._scheduler.take_retracted())
        if batch is None:
            self._stalled = self._flight is None
            self._steady, self._rows = [], []
            return self._land()
        ahead = batch.forward_mode.is_decode() and not self._constrained(batch)
        outputs = [] if ahead else self._land()
        before, self._flight = self._flight, self._launch(batch)
        if before is not None:
            self._lookahead_steps += 1
            outputs = self._resolve(before)
        if not (ahead and self._looks_ahead):
            outputs += self._land()
        return outputs

    def _constrained(self, batch: ScheduleBatch) -> bool:
        """Whether somebody must know its newest token to draw the next. Upstream steps for all or
        for none, so the whole batch does not look ahead then."""
        residents = (self._residents[req.rid] for req in batch.reqs)
        return any(r.active.seq.request.constraint is not None for r in residents)

    def _launch(self, batch: ScheduleBatch) -> _Flight:
        """Run the forward and draw."""
        segments = self._segments(batch)
        self._runner.begin(segments, decode=batch.forward_mode.is_decode())
        self._steps += 1
        self._drawn = None
        result = self._scheduler.run_batch(batch)
        for segment in segments:
            segment.seq.computed = segment.start + segment.count
        for _, active in self._sampled:
            active.in_flight += 1
        batch = batch.copy() if self._looks_ahead else batch
        return _Flight(batch, result, self._sampled, self._drawn, self._runner.hidden())

    def _segments(self, batch: ScheduleBatch) -> list[Segment]:
        """The rows of a batch as the runner knows them. While the same sequences decode, those of
        the step before, moved on."""
        decodes = batch.forward_mode.is_decode()
        if decodes and batch.reqs == self._steady:
            for segment in self._rows:
                segment.start = segment.seq.computed
            return self._rows
        parts = self._scheduler.parts(batch)
        residents = [self._residents[part.request_id] for part in parts]
        for resident, part in zip(residents, parts, strict=True):
            self._residents.place(resident, part)
        self._sampled = [
            (place, resident.active)
            for place, (resident, part) in enumerate(zip(residents, parts, strict=True))
            if part.samples and part.start + part.count >= resident.active.seq.request.prompt_len
        ]
        self._cut_prompts += not all(part.samples for part in parts)
        self._steady = list(batch.reqs) if decodes else []
        self._rows = [
            Segment(seq=r.active.seq, start=p.start, count=p.count, samples=p.samples)
            for r, p in zip(residents, parts, strict=True)
        ]
        return self._rows

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Tokens of all places; 0 where nothing is sampled."""
        going = [active for _, active in self._sampled]
        if not going:
            return logits.new_zeros(len(logits), dtype=torch.long)
        if len(going) == len(logits):
            self._drawn = self._sampler.draw(going, logits.float())
            return self._sampler.decode_rows(going)[1]
        places = upload([place for place, _ in self._sampled], logits.device)
        self._drawn = self._sampler.draw(going, logits[places].float())
        tokens = logits.new_zeros(len(logits), dtype=torch.long)
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
        tokens, logprobs = draw.wait()
        here = list(range(len(flight.sampled)))
        if self._looks_ahead:
            here = [i for i in here if flight.sampled[i][1] in self._residents]
        going = [flight.sampled[i][1] for i in here]
        if not going:
            return []
        taken = [tokens[i] for i in here]
        self._tokens += len(going)
        verdicts = [active.take(token) for active, token in zip(going, taken, strict=True)]
        finished = [verdict.finish_reason is not None for verdict in verdicts]
        hidden = flight.hidden
        if len(going) < len(hidden):
            hidden = hidden[upload([flight.sampled[i][0] for i in here], hidden.device)]
        data = self._runner.collect([active.seq for active in going], hidden, finished)
        learnt = zip(going, taken, verdicts, data, map(logprobs.get, here), strict=True)
        outputs = list(starmap(ActiveSequence.output, learnt))
        for active in compress(going, finished):
            self._residents.end(active.seq.request_id)
        return outputs

    def _ready(self, request_id: str) -> bool:
        return not self._runner.feedback or self._residents.is_ready(request_id)


def _inference() -> AbstractContextManager[object]:
    """Inference mode, which takes 50 us to enter and leave; nothing inside a session."""
    return nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode()
