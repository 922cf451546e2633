"""The embedded AR engine: continuous batching over a paged KV cache.

Knows the order of one step: plan, forward, draw, resolve. Its parts know the rest: who runs
(`residents`), what a step computes (`planner`), where KV lies (`memory`, `sharing`), how tokens are
drawn (`tokens`). Knows nothing of models or modalities: an `ARRunner` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec
import torch

from omni_core.engine.base import (
    TORCH,
    ARRunner,
    Batch,
    EngineRequest,
    EngineStats,
    StepOutput,
)
from omni_core.engine.common.admission import check_request
from omni_core.engine.common.inference import inference
from omni_core.engine.common.learn import learn
from omni_core.engine.common.tokens import Draw, TokenSampler
from omni_core.engine.common.transfer import HostCopy, StartCopy
from omni_core.engine.torch_engine.attention import StepAttention, attention, example
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.engine.torch_engine.kv import PAGE_SIZE, KVCache
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.engine.torch_engine.paged import PagedSequence
from omni_core.engine.torch_engine.plan import StepPlan
from omni_core.engine.torch_engine.planner import LOOKAHEAD_DECODES, Planner
from omni_core.engine.torch_engine.residents import Residents
from omni_core.engine.torch_engine.sharing import PrefixSharing
from omni_core.engine.torch_engine.varlen import page_size_for


class _Flight(msgspec.Struct, frozen=True, eq=False):
    """A step that was launched and whose tokens the host has not seen."""

    plan: StepPlan
    hidden: torch.Tensor
    draw: Draw | None
    """None if nothing was sampled."""


class TorchEngine:
    """`Engine` in plain torch; runs on any device torch has."""

    capabilities = TORCH

    def __init__(
        self,
        runner: ARRunner,
        config: TorchEngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        start_copy: StartCopy = HostCopy,
    ) -> None:
        """`clock` in seconds, for `coalesce_ms`; `start_copy` brings tokens to the host."""
        config = config or TorchEngineConfig()
        rows, device = config.max_running, runner.device
        self.max_running = rows
        self._runner = runner
        self._looks_ahead = config.looks_ahead(runner)
        self._cache = KVCache(
            runner.kv,
            budget_bytes=config.kv_budget_bytes,
            rows=rows,
            device=device,
            dtype=runner.dtype,
            page_size=page_size_for(device, runner.dtype, PAGE_SIZE),
        )
        runner.prepare(rows, partial(example, self._cache))
        self._memory = KVMemory(self._cache, rows)
        self._sharing = PrefixSharing(
            self._memory, runner, page_size=self._cache.page_size, enabled=config.prefix_cache
        )
        self._sampler = TokenSampler(rows, runner.vocab_size, runner.suppress, device, start_copy)
        self._residents = Residents(
            runner,
            self._memory,
            self._sharing,
            pages_for=self._cache.pages_for,
            seat=self._sampler.seat,
            coalesce_s=config.coalesce_ms / 1000,
            clock=clock,
        )
        self._planner = Planner(self._residents, self._memory, self._sharing, config, runner)
        self._flight: _Flight | None = None
        self._steps = self._lookahead_steps = self._tokens = 0

    def add(self, request: EngineRequest) -> None:
        """See `Engine`."""
        if request.request_id in self._residents:
            raise ValueError(f"request {request.request_id!r} is still in the engine")
        check_request(
            request,
            feedback=self._runner.feedback,
            max_len=self._runner.kv.max_len,
            vocab_size=self._runner.vocab_size,
            pages_for=self._cache.pages_for,
            pages_total=self._cache.pages.total,
        )
        self._residents.add(request)

    def session(self) -> AbstractContextManager[object]:
        """See `Engine`."""
        return torch.inference_mode()

    def feed(self, request_id: str, chunk: Any) -> None:
        """See `Engine`."""
        with inference():
            self._residents.feed(request_id, chunk)

    def runnable(self) -> bool:
        """See `Engine`."""
        in_flight = self._flight is not None
        return in_flight or self._planner.can_run() or self._residents.admissible()

    def wakes_in_s(self) -> float | None:
        """See `Engine`."""
        return self._residents.held_s() or None

    def step(self) -> list[StepOutput]:
        """See `Engine`. With look-ahead, the next step is launched before this one is resolved."""
        with inference():
            return self._step()

    def abort(self, request_id: str) -> None:
        """See `Engine`."""
        with inference():
            self._residents.end(request_id)

    def forget_prefixes(self) -> None:
        """See `Engine`."""
        if self._residents.waiting or self._residents.running:
            raise ValueError("prefixes cannot be forgotten while there are requests")
        self._memory.forget()

    def stats(self) -> EngineStats:
        """See `Engine`."""
        return EngineStats(
            waiting=self._residents.waiting,
            running=len(self._residents.running),
            kv_pages_used=self._memory.used,
            kv_pages_total=self._cache.pages.total,
            kv_pages_cached=self._memory.cached,
            steps=self._steps,
            tokens=self._tokens,
            prompt_tokens=self._residents.prompt_tokens,
            prefix_hit_tokens=self._sharing.hit_tokens,
            cut_prompts=self._planner.cut_prompts,
            retractions=self._residents.retractions,
            lookahead_steps=self._lookahead_steps,
        )

    def _step(self) -> list[StepOutput]:
        self._residents.admit()
        flight = self._flight or self._launch(self._planner.plan())
        self._flight = None
        if flight is None:
            return []
        if self._looks_ahead and len(flight.plan.sampled) >= LOOKAHEAD_DECODES:
            self._flight = self._launch(self._planner.plan(ahead=True))
            self._lookahead_steps += self._flight is not None
        return self._resolve(flight)

    def _launch(self, plan: StepPlan) -> _Flight | None:
        """Run the forward and draw; None if nothing was planned."""
        if not plan.segments:
            return None
        self._steps += 1
        hidden = self._forward(plan)
        for active in plan.prompts:
            self._sharing.publish(active)
        sampled = plan.sampled
        draw = self._sampler.draw(sampled, self._runner.logits(hidden)) if sampled else None
        for active in sampled:
            active.in_flight += 1
        return _Flight(plan, hidden, draw)

    def _forward(self, plan: StepPlan) -> torch.Tensor:
        self._memory.map()
        rows, tokens = self._sampler.decode_rows(plan.decodes)
        batch = Batch(
            segments=plan.segments,
            decodes=len(plan.decodes),
            rows=rows,
            tokens=tokens,
            attend=self._attention(plan),
        )
        hidden = self._runner.forward(batch)
        for segment in plan.segments:
            segment.start += segment.count
            segment.seq.computed = segment.start
        return hidden

    def _attention(self, plan: StepPlan) -> StepAttention:
        if plan.attention is None:
            rows = [segment.seq.row for segment in plan.segments]
            plan.attention = attention(self._cache, plan.segments, rows)
        else:
            plan.attention.advance()
        return plan.attention

    def _resolve(self, flight: _Flight) -> list[StepOutput]:
        """Learn the tokens of a step and act on them. What ended after the launch was computed once
        too often; nothing of that is kept."""
        if flight.draw is None:
            return []
        plan, is_here = flight.plan, _is_here if self._looks_ahead else None
        outputs = learn(
            flight.draw, plan.sampled, plan.seqs, flight.hidden, self._runner.collect, is_here
        )
        self._tokens += len(outputs)
        for output in outputs:
            if output.finish_reason is not None:
                self._residents.end(output.request_id)
        return outputs


def _is_here(active: PagedSequence) -> bool:
    return active.kv is not None
