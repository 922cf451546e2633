"""The tiny Thinker on SGLang's engine beside the torch engine, and what driving SGLang costs.

Needs an environment with SGLang in it, as `nox -s sglang` makes one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import engine
import stages
from checkpoint import build_endless
from omni_core.engine.sglang_engine.build import load_scheduler
from omni_core.engine.sglang_engine.config import engine_config
from omni_core.specs import StageContext
from results import Case, Report

OWN_MS: Final = 0.2
BATCHES: Final = (1, 8)


def measure(options: argparse.Namespace) -> Report:
    """Both engines in turn, round by round."""
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        other, ours = engine.Thinker.load(checkpoint), OnSglang(checkpoint)
    rates: dict[int, list[tuple[float, float]]] = {batch: [] for batch in BATCHES}
    own_ms: list[float] = []
    for number in range(options.rounds + 1):  # the first one warms up
        for batch, found in rates.items():
            prompts = other.prompts(batch, engine.PROMPT_TOKENS)
            requests = [other.request(ids, options.tokens) for ids in prompts]
            own, seconds = ours.decode(requests)
            if number:
                made = batch * options.tokens
                found.append((made / seconds, made / other.decode(prompts, options.tokens)))
                own_ms += [own] if batch == BATCHES[-1] else []
    return Report(
        cases=(
            *(_decode_case(batch, found) for batch, found in rates.items()),
            Case(
                case=f"own work per step beyond SGLang's, batch {BATCHES[-1]}",
                unit="ms",
                ours=median(own_ms),
                goal=OWN_MS,
                better="less",
            ),
        )
    )


def _decode_case(batch: int, rates: list[tuple[float, float]]) -> Case:
    ours, other = (median(values) for values in zip(*rates, strict=True))
    return Case(
        case=f"decode, batch {batch}",
        unit="tokens/s",
        ours=ours,
        other=other,
        other_name="torch engine",
    )


class OnSglang:
    """The engine over upstream's scheduler, with a clock on what upstream does."""

    def __init__(self, checkpoint: str) -> None:
        """Load a checkpoint's Thinker."""
        from omni_core.engine.sglang_engine import bootstrap

        ctx: StageContext = stages.context(checkpoint, "thinker")
        bootstrap.prepare()
        from omni_core.engine.sglang_engine.engine import SglangEngine
        from omni_qwen3.on_sglang.thinker import load_model

        model = load_model(ctx, speaks=False)
        config = engine_config(ctx, model.runner)
        self.watch = Watch(load_scheduler(ctx, config, model))
        self.engine = SglangEngine(self.watch, model.runner, config)

    def decode(self, requests: list[Any]) -> tuple[float, float]:
        """(milliseconds of CPU beyond upstream's own in each decode step, seconds) for all their
        tokens; prefill counts for the seconds alone."""
        began_s, before = time.perf_counter(), self.engine.stats().tokens
        with self.engine.session():  # as the stage's loop does
            for request in requests:
                self.engine.add(request)
            while self.engine.stats().tokens < before + 2 * len(requests):
                self.engine.step()
            self.watch.away_s, steps, began = 0.0, 0, time.thread_time()
            while self.engine.runnable():
                self.engine.step()
                steps += 1
            own_s = time.thread_time() - began - self.watch.away_s
        return own_s / steps * 1e3, time.perf_counter() - began_s


class Watch:
    """Upstream's scheduler, but for a clock on what it does: plan, compute, settle. Drawing is in
    it, which upstream would do as well."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.away_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def plan(self, **options: Any) -> Any:
        """See `InProcessScheduler`."""
        return self._timed(self._scheduler.plan, **options)

    def run_batch(self, batch: Any) -> Any:
        """See upstream's `Scheduler`."""
        return self._timed(self._scheduler.run_batch, batch)

    def settle(self, batch: Any, result: Any) -> None:
        """See `InProcessScheduler`."""
        self._timed(self._scheduler.settle, batch, result)

    def _timed(self, call: Any, *args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*args, **options)
        finally:
            self.away_s += time.thread_time() - began
