"""The AR engine over the tiny MoE Thinker: decoding, its own work per step, first tokens."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

import stages
from checkpoint import build_endless
from omni_core.engine.base import Batch, Engine, EngineRequest
from omni_core.engine.common.transfer import HostCopy
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig
from omni_core.scheduler.base import Work
from omni_core.types import RequestParams, SamplingParams
from omni_qwen3.defaults import thinker_defaults
from omni_qwen3.thinker import ThinkerRunner, ThinkerStage, load_runner
from results import Case, Report

PROMPT_TOKENS: Final = 32
LONG_PROMPT_TOKENS: Final = 4096
ORDINARY_TOKENS: Final = 256
"""Ids below are ordinary text in the tiny vocabulary."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--tokens", type=int, default=96, help="per request (default 96)")
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many (default 5)")
    parser.add_argument(
        "--ar-engine",
        default="torch",
        choices=("torch", "sglang"),
        help="torch: beside transformers; sglang: what driving it costs, beside torch",
    )


def measure(options: argparse.Namespace) -> Report:
    """Ours and transformers' in turn, round by round."""
    torch.set_num_threads(1)
    if options.ar_engine == "sglang":
        import engine_on_sglang  # which loads this module's Thinker beside its own

        return engine_on_sglang.measure(options)
    from hf import NAME, Transformers

    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_endless(Path(workshop, "endless"))
        ours, other = Thinker.load(checkpoint), Transformers.load(checkpoint)
    rates: dict[int, list[tuple[float, float]]] = {1: [], 8: []}
    own_ms: list[float] = []
    for number in range(options.rounds + 1):  # the first one warms up
        for batch, found in rates.items():
            prompts = ours.prompts(batch, PROMPT_TOKENS)
            seconds = (
                ours.decode(prompts, options.tokens),
                other.text(torch.from_numpy(prompts), options.tokens),
            )
            if number:
                found.append(tuple(batch * options.tokens / s for s in seconds))
        if number:
            own_ms.append(ours.own_ms_per_step(batch=8, tokens=options.tokens))
    return Report(
        cases=(
            *(_decode_case(batch, found, NAME) for batch, found in rates.items()),
            Case(
                case="own work per step, batch 8",
                unit="ms",
                ours=median(own_ms),
                goal=0.25,
                better="less",
            ),
            *ours.first_tokens(options.rounds),
        )
    )


def _decode_case(batch: int, rates: Sequence[tuple[float, float]], other_name: str) -> Case:
    ours, other = (median(values) for values in zip(*rates, strict=True))
    return Case(
        case=f"decode, batch {batch}",
        unit="tokens/s",
        ours=ours,
        other=other,
        other_name=other_name,
        goal={1: 1.3, 8: 2.0}[batch],
    )


@dataclass(slots=True)
class Thinker:
    """The Thinker's runner and stage, and an engine over them."""

    runner: ThinkerRunner
    stage: ThinkerStage
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    served: int = 0

    @classmethod
    def load(cls, checkpoint: str) -> Thinker:
        """Load a checkpoint's Thinker."""
        runner = load_runner(stages.context(checkpoint, "thinker"))
        defaults = thinker_defaults(checkpoint)
        return cls(runner, ThinkerStage(runner, defaults, can_speak=False, max_running=0))

    def prompts(self, batch: int, tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(batch, tokens) ids, new ones each time, so that no prefix is known."""
        return self.random.integers(0, ORDINARY_TOKENS, (batch, tokens))

    def decode(self, prompts: np.ndarray[Any, np.dtype[np.int64]], tokens: int) -> float:
        """Seconds for `tokens` greedy tokens to each prompt, prefill included."""
        engine = TorchEngine(self.runner, TorchEngineConfig())
        requests = [self.request(ids, tokens) for ids in prompts]
        began = time.perf_counter()
        for request in requests:
            engine.add(request)
        made = sum(len(engine.step()) for _ in iter(engine.runnable, False))
        assert made == prompts.shape[0] * tokens
        return time.perf_counter() - began

    def own_ms_per_step(self, *, batch: int, tokens: int) -> float:
        """Milliseconds of CPU that a decode step takes outside the model and the sampler."""
        watch = Watch(self.runner)
        engine = TorchEngine(watch, TorchEngineConfig(), start_copy=watch.start_copy)
        for ids in self.prompts(batch, PROMPT_TOKENS):
            engine.add(self.request(ids, tokens))
        while engine.stats().tokens < batch * 2:  # admission and prefill are over
            engine.step()
        watch.away_s, steps = 0.0, 0
        with engine.session():  # as the stage's loop does
            began = time.thread_time()
            while engine.runnable():
                assert len(engine.step()) == batch
                steps += 1
            return (time.thread_time() - began - watch.away_s) / steps * 1e3

    def first_tokens(self, rounds: int) -> tuple[Case, ...]:
        """When a short prompt has its first token: alone, and come behind a long one."""
        alone, behind, whole = [], [], []
        for _ in range(rounds):
            alone.append(self._first_token_s(TorchEngine(self.runner, TorchEngineConfig())))
            engine = TorchEngine(self.runner, TorchEngineConfig())
            long = self.request(self.prompts(1, LONG_PROMPT_TOKENS)[0], 1)
            engine.add(long)
            began = time.perf_counter()
            engine.step()
            behind.append(self._first_token_s(engine))
            while engine.runnable():
                engine.step()
            whole.append(time.perf_counter() - began)
        name = f"first token behind a prompt of {LONG_PROMPT_TOKENS} tokens"
        return (
            Case(case="first token, alone", unit="ms", ours=median(alone) * 1e3, better="less"),
            Case(
                case=name,
                unit="ms",
                ours=median(behind) * 1e3,
                other=median(whole) * 1e3,
                other_name="that prompt's own prefill",
                better="less",
            ),
        )

    def request(self, ids: np.ndarray[Any, np.dtype[np.int64]], tokens: int) -> EngineRequest:
        """What the stage asks of an engine for one prompt."""
        self.served += 1
        payload = {
            "input_ids": ids,
            "positions": np.tile(np.arange(len(ids), dtype=np.float32), (3, 1)),
            "rope_delta": 0.0,
        }
        params = RequestParams(sampling=SamplingParams(temperature=0.0, max_tokens=tokens))
        work = Work(f"request {self.served}", params, payload)
        request = self.stage.admit(work, stages.Listener())
        assert request is not None
        return request

    def _first_token_s(self, engine: Engine) -> float:
        request = self.request(self.prompts(1, PROMPT_TOKENS)[0], 1)
        began = time.perf_counter()
        engine.add(request)
        while all(output.request_id != request.request_id for output in engine.step()):
            pass
        return time.perf_counter() - began


class Watch:
    """An `ARRunner` that is another's, but for a clock on what is not the engine's own work: the
    model, and from its logits to the tokens on their way to the host, the sampler."""

    def __init__(self, runner: ThinkerRunner) -> None:
        self._runner = runner
        self._logits_at = 0.0
        self.away_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        began = time.thread_time()
        hidden = self._runner.forward(batch)
        self.away_s += time.thread_time() - began
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ARRunner`."""
        self._logits_at = time.thread_time()
        return self._runner.logits(hidden)

    def start_copy(self, tensors: Sequence[torch.Tensor]) -> HostCopy:
        """The sampler's last act."""
        copy = HostCopy(tensors)
        self.away_s += time.thread_time() - self._logits_at
        return copy

    def collect(self, seqs: Any, hidden: torch.Tensor, finished: list[bool]) -> list[Any]:
        """See `ARRunner`."""
        began = time.thread_time()
        data = self._runner.collect(seqs, hidden, finished)
        self.away_s += time.thread_time() - began
        return data
