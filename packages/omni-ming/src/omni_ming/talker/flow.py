"""The flow (conditional flow matching): noise to a patch of latents, for many utterances at once.

Solves dy/dt = v by Euler's method at moments that lie closer together at the start, with
classifier-free guidance: v = c + g * (c - n), where c is the velocity given the language model's
row, and n that for a row of zeros. The two are one batch of the network, so B utterances are 2 B.

On request, each step adds noise: sigma * sqrt(temperature * dt) times a standard normal number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from omni_core.checkpoint.weights import Weights
from omni_core.engine.common.transfer import upload
from omni_core.steps import StepBank
from omni_ming.talker.config import TalkerConfig
from omni_ming.talker.dit import Dit

GUIDANCE = 2.0
SIGMA = 0.25
_UNITS = 32
_EARLY_MOMENTS: dict[int, tuple[int, ...]] = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32),
}
"""{steps: moments in 32nds} ("empirically pruned steps", Zheng et al., 2025)."""


def moments(steps: int) -> list[float]:
    """The steps + 1 moments from 0 to 1, drawn towards the start ("sway", Chen et al., 2024)."""
    early = _EARLY_MOMENTS.get(steps)
    line = [m / _UNITS for m in early] if early else np.linspace(0, 1, steps + 1).tolist()
    return [1 - math.cos(math.pi / 2 * u) for u in line]


@dataclass(frozen=True, slots=True)
class EulerStep:
    """One step of the solver (a program of `omni_core.steps`)."""

    dit: Dit
    guidance: float

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """Float32 x (B, patch, latent_dim) moved by `dt` (1,) from `moment` (1,), after history
        (B, past, latent_dim), for rows (B, hidden)."""
        x, history, rows, moment, dt = tensors
        velocity = self.dit(
            torch.cat([x, x]),
            torch.cat([history, history]),
            torch.cat([rows, torch.zeros_like(rows)]),
            moment,
        ).float()
        given, free = velocity.view(2, *x.shape).unbind()
        return (x + (given + self.guidance * (given - free)) * dt,)


class Flow:
    """Draws patches."""

    def __init__(
        self, weights: Weights, config: TalkerConfig, bank: StepBank, guidance: float = GUIDANCE
    ) -> None:
        """`bank` may make the solver's step faster."""
        self._shape = (config.patch, config.latent_dim)
        self._past = (config.history, config.latent_dim)
        self._hidden = config.llm.hidden_size
        self._device, self._dtype = weights.device, weights.dtype
        self.dit = weights.part(lambda w: Dit.load(w, config))
        self.noise_shape = (config.steps, *self._shape)
        """Of the noise that a patch takes beside the first."""
        line = moments(config.steps)
        lengths = [end - start for start, end in pairwise(line)]
        self._moments = torch.split(upload(line[:-1], self._device, torch.float32), 1)
        self._lengths = torch.split(upload(lengths, self._device, torch.float32), 1)
        self._spread = [SIGMA * math.sqrt(length) for length in lengths]
        self._step = bank.step(
            "flow",
            EulerStep(self.dit, guidance),
            dynamic=({0: "batch"}, {0: "batch"}, {0: "batch"}, {}, {}),
            examples=lambda: map(self._example, bank.batches),
        )
        self.patches = self.calls = 0

    def __call__(
        self,
        rows: torch.Tensor,
        history: torch.Tensor,
        start: torch.Tensor,
        noise: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Patches (B, patch, latent_dim) float32 for the rows (B, hidden) of as many utterances.

        `history` (B, past, latent_dim) float32 are the latents before, zeros where there are none,
        and `start` standard normal numbers of the patches' shape. `noise` (steps, B, patch,
        latent_dim) is scaled by each utterance's sqrt(temperature); None for none.
        """
        self.calls += 1
        self.patches += len(rows)
        x = start
        for index, (moment, length) in enumerate(zip(self._moments, self._lengths, strict=True)):
            (x,) = self._step(x, history, rows, moment, length)
            if noise is not None:
                x = x + self._spread[index] * noise[index]
        return x.clone()  # the step's result is overwritten by its next call

    def stats(self) -> dict[str, float]:
        """Patches drawn, the batches that this took, and their mean size (half the network's)."""
        return {
            "flow_patches": self.patches,
            "flow_batches": self.calls,
            "flow_batch_mean": self.patches / self.calls if self.calls else 0.0,
        }

    def _example(self, batch: int) -> tuple[torch.Tensor, ...]:
        x = torch.zeros(batch, *self._shape, device=self._device)
        history = torch.zeros(batch, *self._past, device=self._device)
        rows = torch.zeros(batch, self._hidden, device=self._device, dtype=self._dtype)
        return x, history, rows, self._moments[0], self._lengths[0]
