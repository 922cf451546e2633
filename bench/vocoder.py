"""Code2Wav in pieces: time per frame and error beside one decode of the whole, and memory."""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch

import stages
from checkpoint import build_tiny
from omni_core.scheduler.streaming import StreamingVocoder
from omni_core.steps import build_bank
from omni_core.types import FloatArray, IntArray, RequestParams
from omni_qwen3.code2wav.config import load_config
from omni_qwen3.code2wav.model import Code2Wav, load_model
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder
from results import Case, Report

FRAMES: Final = 200
PIECES: Final = (10, 1)
TIME_GOAL: Final = 1 / 1.4
ERROR_GOAL: Final = 1e-4
BATCH: Final = 8
LONG_FRAMES: Final = 4000
SETTLED_FRAMES: Final = 100
GROWTH_GOAL_MB: Final = 20.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many (default 5)")
    parser.add_argument(
        "--compile",
        choices=("off", "wait"),
        default="off",
        help="off: eager steps (default); wait: compiled before they are measured",
    )


def measure(options: argparse.Namespace) -> Report:
    """Pieces and the whole in turn, round by round."""
    from hf import Transformers

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = build_tiny(Path(workshop, "tiny"))
        ctx = stages.context(checkpoint, "code2wav", compile=options.compile)
        model = load_model(checkpoint, device="cpu", dtype="float32", report=ctx.report)
        vocoder = Qwen3Vocoder(model, build_bank(ctx), max_replies=BATCH, chunk_frames=PIECES)
        bench = Bench(vocoder, model, checkpoint)
        theirs = Transformers.load(checkpoint).model.code2wav
    rounds = [bench.once(theirs) for _ in range(options.rounds + 1)][1:]  # the first warms up
    return Report(cases=(*bench.speed_cases(rounds), bench.memory_case()))


@dataclass(slots=True)
class Once:
    """One round, in milliseconds per frame."""

    theirs_ms: float
    whole_ms: float
    pieces_ms: dict[int, float]
    batch_ms: float
    """Of `BATCH` replies at once in pieces of `PIECES[0]`, per frame of one."""
    errors: dict[int, float]
    """Of pieces against transformers' waveform."""


class Bench:
    """A vocoder, and codes of noise for it."""

    def __init__(self, vocoder: StreamingVocoder, model: Code2Wav, checkpoint: str) -> None:
        self._vocoder = vocoder
        self._model = model
        self._config = load_config(checkpoint)
        self._random = np.random.default_rng(0)

    @torch.inference_mode()
    def once(self, theirs: torch.nn.Module) -> Once:
        """Decode the same codes in every way."""
        codes = self._codes(FRAMES)
        batch = torch.from_numpy(codes)
        began = time.perf_counter()
        wanted = theirs(batch[None])[0, 0].numpy()
        theirs_s = time.perf_counter() - began
        began = time.perf_counter()
        self._model.decode(batch)
        whole_s = time.perf_counter() - began
        pieces = {size: self._in_pieces(codes, size, replies=1) for size in PIECES}
        batch_s, _ = self._in_pieces(codes, PIECES[0], replies=BATCH)
        return Once(
            theirs_ms=theirs_s / FRAMES * 1e3,
            whole_ms=whole_s / FRAMES * 1e3,
            pieces_ms={size: seconds / FRAMES * 1e3 for size, (seconds, _) in pieces.items()},
            batch_ms=batch_s / FRAMES / BATCH * 1e3,
            errors={size: float(abs(wav - wanted).max()) for size, (_, wav) in pieces.items()},
        )

    def speed_cases(self, rounds: Sequence[Once]) -> list[Case]:
        """Time and error of pieces, beside transformers' decode of the whole and ours."""
        theirs = median(one.theirs_ms for one in rounds)
        whole = median(one.whole_ms for one in rounds)
        found = []
        for size in PIECES:
            ours = median(one.pieces_ms[size] for one in rounds)
            goal = TIME_GOAL if size == PIECES[0] else None
            name = f"pieces of {size} frame{'s' * (size > 1)}"
            for other, other_name in ((theirs, "transformers, whole"), (whole, "ours, whole")):
                found.append(_time_case(f"{name}, time per frame", ours, other, other_name, goal))
            found.append(
                Case(
                    case=f"{name}, error against transformers",
                    unit="",
                    ours=max(one.errors[size] for one in rounds),
                    goal=ERROR_GOAL,
                    better="less",
                )
            )
        batch = median(one.batch_ms for one in rounds)
        name = f"pieces of {PIECES[0]} frames, {BATCH} replies at once, time per frame"
        found.append(_time_case(name, batch, theirs, "transformers, whole, one by one", None))
        return found

    def memory_case(self) -> Case:
        """Growth of this process over one long reply, pushed as a steady stream."""
        settled = 0

        def watch(frames: int) -> None:
            nonlocal settled
            if frames == SETTLED_FRAMES:
                gc.collect()
                settled = _rss_bytes()

        self._in_pieces(self._codes(LONG_FRAMES), PIECES[0], replies=1, watch=watch, keep=False)
        gc.collect()
        return Case(
            case=f"memory growth from frame {SETTLED_FRAMES} to {LONG_FRAMES}",
            unit="MB",
            ours=(_rss_bytes() - settled) / 1e6,
            goal=GROWTH_GOAL_MB,
            better="less",
        )

    def _codes(self, frames: int) -> IntArray:
        size = (self._config.groups, frames)
        return self._random.integers(0, self._config.codebook_size, size)

    def _in_pieces(
        self,
        codes: IntArray,
        size: int,
        *,
        replies: int,
        watch: Callable[[int], None] = lambda frames: None,
        keep: bool = True,
    ) -> tuple[float, FloatArray]:
        """Seconds, and the first reply's samples. `watch` is told the frames so far."""
        states = [self._vocoder.open(RequestParams(), {}) for _ in range(replies)]
        wavs = []
        began = time.perf_counter()
        for start in range(0, codes.shape[1], size):
            piece = codes[:, start : start + size]
            samples = self._vocoder.push(states, [piece] * replies)
            if keep:
                wavs.append(samples[0])
            watch(start + piece.shape[1])
        seconds = time.perf_counter() - began
        for state in states:
            self._vocoder.flush(state)
            self._vocoder.close(state)
        return seconds, np.concatenate(wavs) if wavs else np.zeros(0, np.float32)


def _time_case(
    name: str, ours_ms: float, other_ms: float, other_name: str, goal: float | None
) -> Case:
    return Case(
        case=name,
        unit="ms",
        ours=ours_ms,
        other=other_ms,
        other_name=other_name,
        goal=goal,
        better="less",
    )


def _rss_bytes() -> int:
    """Resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
