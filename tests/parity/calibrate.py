"""Find the constants that `omni_qwen3.tiny.weights.CALIBRATION` holds, and print them.

    python tests/parity/calibrate.py

To be run again only when shapes, scales or names of the tiny checkpoint change. What it finds also
depends on the cases; new constants need new references and a new digest in test_tiny.

Greedy replies of random weights rarely end. What the model says before its end token does not
depend on that token's head row, so the row is found by a search: record the hidden state and the
winning logit of every step of every case, draw many rows, and take the one that first wins at a
step we like in the most cases. The Talker's row is searched after the Thinker's, because the Talker
hears the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases import CASES, Case
from omni_qwen3 import tiny
from omni_qwen3.tiny.weights import CALIBRATION, Calibration, EndRow
from oracle import Oracle

DRAWS = 40000
WAV_PEAK = 0.6
UNCALIBRATED = Calibration(
    text_end=EndRow(draw=0, scale=0.0),
    codec_end=EndRow(draw=0, scale=0.0),
    thought_end=CALIBRATION.thought_end,  # of checkpoints without speech, which are not read here
    wav_gain=1.0,
    wav_bias=0.0,
)


@dataclass(frozen=True, slots=True)
class Wish:
    """After how many tokens a reply should end."""

    first: int
    last: int
    scales: tuple[float, ...]
    """Sizes of the row to try, about those of the other rows of the head."""


TEXT_WISH = Wish(4, 42, (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7))
CODEC_WISH = Wish(16, 60, (0.3, 0.35, 0.4, 0.5, 0.6, 0.7))


@dataclass
class Run:
    """The steps of one greedy run."""

    hidden: list[torch.Tensor] = field(default_factory=list)
    """What the head saw, (H,) each."""
    best: list[float] = field(default_factory=list)
    """The score that won."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.best.append(scores.max().item())
        return scores

    def see(self, module: Any, args: tuple[torch.Tensor], logits: torch.Tensor) -> None:
        """A forward hook of the head."""
        self.hidden.append(args[0][0, -1])

    def first_wins(self, rows: torch.Tensor) -> torch.Tensor:
        """For each row, (D, H), the first step at which it would win; a large number if none."""
        wins = torch.stack(self.hidden) @ rows.T > torch.tensor(self.best)[:, None]
        return torch.where(wins.any(0), wins.int().argmax(0), 10**6)


def main() -> None:
    """Search and print."""
    torch.set_num_threads(1)
    calibration = UNCALIBRATED
    oracle = load(calibration)
    gain, bias = calibrate_wav(oracle)
    calibration = replace(calibration, wav_gain=gain, wav_bias=bias)
    runs = [record(oracle, case, oracle.model.thinker.lm_head, "thinker") for case in CASES]
    calibration = replace(calibration, text_end=search(runs, TEXT_WISH))
    oracle = load(calibration)
    spoken = [case for case in CASES if case.name != "only_end"]
    runs = [record(oracle, case, oracle.model.talker.codec_head, "talker") for case in spoken]
    calibration = replace(calibration, codec_end=search(runs, CODEC_WISH))
    print(calibration)


def load(calibration: Calibration) -> Oracle:
    """The model of seed 0 with these constants."""
    with tempfile.TemporaryDirectory() as directory:
        tiny.write(Path(directory), 0, calibration)
        return Oracle.load(directory)


@torch.no_grad()
def calibrate_wav(oracle: Oracle) -> tuple[float, float]:
    """Gain and bias of the last convolution that centre random codes' audio below the clamp."""
    config = oracle.model.config.code2wav_config
    codes = np.random.default_rng(0).integers(
        config.codebook_size, size=(config.num_quantizers, 60)
    )
    before_clamp: list[torch.Tensor] = []
    last = oracle.model.code2wav.decoder[-1].conv
    with last.register_forward_hook(lambda module, args, wav: before_clamp.append(wav)):
        oracle.model.code2wav(torch.tensor(codes)[None])
    mean = before_clamp[0].mean().item()
    gain = WAV_PEAK / (before_clamp[0] - mean).abs().max().item()
    return gain, -mean * gain


def record(oracle: Oracle, case: Case, head: Any, part: str) -> Run:
    """Run a case to its limit and keep the steps of `head`, which belongs to `part`."""
    run = Run()
    case = replace(case, text_max_tokens=48, talker_max_tokens=64)
    with head.register_forward_hook(run.see):
        oracle.generate(
            oracle.inputs(case),
            case,
            return_audio=part == "talker",
            **{f"{part}_logits_processor": [run]},
        )
    return run


def search(runs: Sequence[Run], wish: Wish) -> EndRow:
    """The row that ends the most runs inside `wish`, and among these spreads their ends widest."""
    size = runs[0].hidden[0].numel()
    draws = np.stack([np.random.default_rng(i).standard_normal(size) for i in range(DRAWS)])
    best_score, best_row, best_ends = -1.0, EndRow(draw=0, scale=0.0), []
    for scale in wish.scales:
        rows = torch.tensor(scale * draws, dtype=torch.float32)
        ends = torch.stack([run.first_wins(rows) for run in runs])
        inside = ((ends >= wish.first) & (ends <= wish.last)).sum(0)
        score = inside + ends.clamp(max=wish.last).float().std(0) / wish.last
        place = int(score.argmax())
        if score[place] > best_score:
            best_score, best_row = score[place].item(), EndRow(draw=place, scale=scale)
            best_ends = ends[:, place].tolist()
    print(f"{best_row}: first ends {best_ends}", flush=True)
    return best_row


if __name__ == "__main__":
    main()
