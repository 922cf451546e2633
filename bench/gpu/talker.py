"""Talker, code predictor and Code2Wav of Qwen3-Omni-30B-A3B at their published sizes, on a card.

Weights are noise, so what is said is noise as well; the work is that of the real model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

import stages
from checkpoint import build_tiny
from gpu.published import NoiseWeights, write_published
from omni_core.engine import build_engine
from omni_core.engine.base import EngineRequest
from omni_core.scheduler.base import Work
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.types import FloatArray, IntArray, RequestParams, SamplingParams
from omni_qwen3.code2wav.config import load_config as vocoder_config
from omni_qwen3.code2wav.model import Code2Wav
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.talker import TalkerRunner
from omni_qwen3.talker_stage import TalkerStage
from results import Case, Report

BATCHES: Final = (1, 8, 32)
WARM_UP_FRAMES: Final = 16
USER_TOKENS: Final = 64
FRAME_MS: Final = 80.0
"""Of audio: 1920 samples at 24 kHz."""
SAME_WITHIN: Final = 0.01
"""Samples of bfloat16 that are nearer than this count as equal."""
STEADY_FRAMES: Final = 8
"""What the vocoder decodes at a time once a reply is under way."""
ALONE_GOAL_MS: Final = 3.0
CROWD_GOAL: Final = 150.0
MODES: Final = {"off": "eager", "wait": "graphs"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--device", default="cuda:0", help="a torch device (cuda:0)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--frames", type=int, default=96, help="measured frames of a reply (96)")
    parser.add_argument(
        "--compile",
        nargs="+",
        choices=tuple(MODES),
        default=list(MODES),
        help="off: eager; wait: with graphs (both by default)",
    )


def measure(options: argparse.Namespace) -> Report:
    """Every batch size without and with graphs, on the same weights."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as workshop:
        directory = Path(workshop, "model")
        build_tiny(directory)
        if not options.tiny:
            write_published(directory)
        found = {
            mode: Speaker.make(_contexts(options, mode, directory)).run(options.frames)
            for mode in options.compile
        }
    cases = [case for mode, runs in found.items() for case in _speed_cases(mode, runs)]
    if len(found) == len(MODES):
        cases += _same_cases(*found.values())
    return Report(cases=tuple(cases), notes=f"on {_card(options.device)}")


def _contexts(options: argparse.Namespace, mode: str, directory: Path) -> list[StageContext]:
    dtype = "float32" if options.device == "cpu" else "bfloat16"
    return [
        replace(
            stages.context(str(directory), stage, compile=mode), device=options.device, dtype=dtype
        )
        for stage in ("talker_ar", "code2wav")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One batch size."""

    batch: int
    talker_ms: float
    """Of one frame for the whole batch, code predictor included."""
    vocoder_ms: float
    codes: list[IntArray]
    """(groups, frames) of each reply."""
    samples: list[FloatArray]
    graph_share: float
    """Of the calls of steps that have a graph, those that replayed it."""


class Speaker:
    """Talker and vocoder over weights of noise."""

    def __init__(
        self,
        config: OmniConfig,
        ctx: StageContext,
        runner: TalkerRunner,
        vocoder: Qwen3Vocoder,
        banks: Sequence[StepBank],
    ) -> None:
        talker = config.require_talker()
        self._width = talker.thinker_hidden_size
        self._codebook = talker.predictor.vocab_size
        self._groups = talker.code_groups
        self._stage = TalkerStage(talker, SamplingParams())
        self._engine = build_engine(ctx, runner)
        self._vocoder = vocoder
        self._banks = banks
        self._device = runner.device

    @classmethod
    def make(cls, contexts: Sequence[StageContext]) -> Speaker:
        """Both models of a configuration, with the steps that its contexts ask for."""
        ctx = contexts[0]
        weights = NoiseWeights(ctx.device, getattr(torch, ctx.dtype))
        config = load_config(ctx.model_path)
        banks = [build_bank(context) for context in contexts]
        marks = weights.tensor("marks", (3, config.require_talker().thinker_hidden_size))
        runner = TalkerRunner(weights, config, marks, banks[0])
        model = Code2Wav.load(weights, vocoder_config(ctx.model_path))
        vocoder = Qwen3Vocoder(model, banks[1], max_replies=max(BATCHES))
        return cls(config, ctx, runner, vocoder, banks)

    def run(self, frames: int) -> list[Run]:
        """All batch sizes, the smallest first."""
        return [self._run(batch, frames) for batch in BATCHES]

    def _run(self, batch: int, frames: int) -> Run:
        self._speak(batch, WARM_UP_FRAMES)  # graphs are made of what is met often
        self._sound(self._noise(batch, WARM_UP_FRAMES))
        before = self._calls()
        talker_ms, codes = self._speak(batch, frames)
        vocoder_ms, samples = self._sound(self._noise(batch, frames))
        calls = {name: count - before[name] for name, count in self._calls().items()}
        return Run(
            batch=batch,
            talker_ms=talker_ms,
            vocoder_ms=vocoder_ms,
            codes=codes,
            samples=samples,
            graph_share=1 - calls["step_calls_eager"] / max(sum(calls.values()), 1),
        )

    def _calls(self) -> dict[str, float]:
        """Calls of both models' steps, by implementation."""
        names = ("step_calls_eager", "step_calls_compiled", "step_calls_graph")
        stats = [bank.stats() for bank in self._banks]
        return {name: sum(one[name] for one in stats) for name in names}

    def _speak(self, batch: int, frames: int) -> tuple[float, list[IntArray]]:
        """Median milliseconds of a step once all replies are under way, and their codes."""
        said: dict[str, list[IntArray]] = {}
        random = torch.Generator().manual_seed(0)
        for number in range(batch):
            request = self._request(f"reply {number}", frames, random)
            said[request.request_id] = []
            self._engine.add(request)
            word = torch.randn(1, self._width, generator=random)
            self._engine.feed(request.request_id, {"rows": word})
            self._engine.feed(request.request_id, None)
        steps_ms = []
        while self._engine.runnable():
            began = time.perf_counter()
            outputs = self._engine.step()
            self._wait()
            steps_ms.append((time.perf_counter() - began) * 1e3)
            for output in outputs:
                if output.data is not None:
                    said[output.request_id].append(output.data)
        return median(steps_ms), [np.stack(codes, axis=1) for codes in said.values()]

    def _sound(self, codes: list[IntArray]) -> tuple[float, list[FloatArray]]:
        """Median milliseconds per frame of the batch, and the samples of each reply."""
        states = [self._vocoder.open(RequestParams(), {}) for _ in codes]
        heard: list[list[FloatArray]] = [[] for _ in codes]
        frames_ms = []
        for start in range(0, codes[0].shape[1], STEADY_FRAMES):
            began = time.perf_counter()
            pieces = [reply[:, start : start + STEADY_FRAMES] for reply in codes]
            for reply, samples in zip(heard, self._vocoder.push(states, pieces), strict=True):
                reply.append(samples)
            frames_ms.append((time.perf_counter() - began) * 1e3 / pieces[0].shape[1])
        for state in states:
            self._vocoder.close(state)
        return median(frames_ms), [np.concatenate(reply) for reply in heard]

    def _noise(self, batch: int, frames: int) -> list[IntArray]:
        """Codes that do not depend on what the Talker says, (groups, frames) for each reply."""
        random = np.random.default_rng(0)
        return list(random.integers(0, self._codebook, (batch, self._groups, frames)))

    def _request(self, request_id: str, frames: int, random: torch.Generator) -> EngineRequest:
        def rows(count: int) -> torch.Tensor:
            return torch.randn(count, self._width, generator=random)

        conditioning: dict[str, Any] = {
            "speak": True,
            "user_ids": np.arange(USER_TOKENS),
            "user_rows": rows(USER_TOKENS),
            "user_is_media": torch.zeros(USER_TOKENS, dtype=torch.bool),
            "assistant_rows": rows(3),
        }
        sampling = SamplingParams(
            temperature=0.0, repetition_penalty=1.05, max_tokens=frames + 1, ignore_eos=True
        )
        params = RequestParams(stage_params={"talker_ar": sampling})
        work = Work(request_id, params, conditioning)
        request = self._stage.admit(work, stages.Listener())
        assert request is not None
        return request

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _speed_cases(mode: str, runs: Sequence[Run]) -> list[Case]:
    judged = mode == "wait"
    found = []
    for run in runs:
        label = f"batch {run.batch}, {MODES[mode]}"
        total_ms = run.talker_ms + run.vocoder_ms
        alone = judged and run.batch == BATCHES[0]
        crowd = judged and run.batch == BATCHES[-1]
        for part, ms in (("Talker and predictor", run.talker_ms), ("Code2Wav", run.vocoder_ms)):
            found.append(Case(case=f"{part}, {label}", unit="ms a frame", ours=ms, better="less"))
        found += [
            Case(
                case=f"both, {label}",
                unit="ms a frame",
                ours=total_ms,
                goal=ALONE_GOAL_MS if alone else None,
                better="less",
            ),
            Case(
                case=f"audio made in a second, {label}",
                unit="x real time",
                ours=run.batch * FRAME_MS / total_ms,
                goal=CROWD_GOAL if crowd else None,
            ),
            Case(case=f"calls that ran a graph, {label}", unit="share", ours=run.graph_share),
        ]
    return found


def _same_cases(eager: Sequence[Run], graphs: Sequence[Run]) -> list[Case]:
    """Whether graphs changed anything."""
    found = []
    for one, other in zip(eager, graphs, strict=True):
        found += [
            Case(
                case=f"codes that graphs leave as they are, batch {one.batch}",
                unit="share",
                ours=_mean(one.codes, other.codes, lambda a, b: (a == b).mean()),
                goal=1.0,
            ),
            Case(
                case=f"samples that graphs leave within {SAME_WITHIN}, batch {one.batch}",
                unit="share",
                ours=_mean(
                    one.samples,
                    other.samples,
                    lambda a, b: np.isclose(a, b, atol=SAME_WITHIN, rtol=0).mean(),
                ),
                goal=1.0,
            ),
        ]
    return found


def _mean(one: Sequence[Any], other: Sequence[Any], measure: Callable[[Any, Any], float]) -> float:
    """Over pairs of arrays."""
    return float(np.mean([measure(a, b) for a, b in zip(one, other, strict=True)]))


def _card(device: str) -> str:
    """What the bench ran on."""
    if torch.device(device).type != "cuda":
        return f"{device}, without a card"
    return torch.cuda.get_device_name(device)
