"""Drawing tokens from logits: greedy and sampled rows mixed in one batch.

Knows logits and per-row settings. Knows nothing of requests, penalties or stop conditions.

Filters follow transformers' definitions and order: temperature, top-k, top-p, min-p. Each sampled
row spends exactly one uniform number of its own generator per draw, so that what a seed gives does
not depend on the rest of the batch. Generators live on the CPU: a seed means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_core.engine.common.transfer import upload
from omni_core.types import SamplingParams

_SEEDS = 2**64
_GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy; dividing by them would overflow float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSampling:
    """How one row is drawn; the defaults are greedy and unfiltered."""

    temperature: float = 0.0
    """0 is greedy; nothing below applies then."""
    top_k: int = 0
    """0 or less switches it off."""
    top_p: float = 1.0
    min_p: float = 0.0
    generator: torch.Generator | None = None
    """A CPU generator of this row alone; needed unless greedy."""

    @property
    def greedy(self) -> bool:
        """Whether the row takes the highest logit."""
        return self.temperature < _GREEDY_BELOW

    @classmethod
    def of(cls, params: SamplingParams) -> RowSampling:
        """Settings and a fresh generator from resolved parameters; unset fields are off."""
        return cls(
            temperature=params.temperature or 0.0,
            top_k=params.top_k or 0,
            top_p=1.0 if params.top_p is None else params.top_p,
            min_p=params.min_p or 0.0,
            generator=make_generator(params.seed) if params.temperature else None,
        )


def make_generator(seed: int | None) -> torch.Generator:
    """A CPU generator for one request; None draws a seed from the operating system."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed % _SEEDS)
    return generator


class BatchSampler:
    """Draws one token for every row; built once per batch, called once per draw.

    Calling it again (the steps of a code predictor) goes on with the same generators.
    """

    def __init__(self, rows: Sequence[RowSampling], device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._sampled = [i for i, row in enumerate(rows) if not row.greedy]
        self._all_sampled = len(self._sampled) == len(rows)
        self._generators = [_generator(rows[i]) for i in self._sampled]
        if not self._sampled:
            return
        drawn = [rows[i] for i in self._sampled]
        self._index = upload(self._sampled, device)
        self._temperature = self._column([row.temperature for row in drawn])
        self._top_k = _TopK.of([row.top_k for row in drawn], device)
        self._top_p = self._top_p_limits([row.top_p for row in drawn])
        self._min_p = None
        if any(row.min_p > 0 for row in drawn):
            self._min_p = self._column([row.min_p for row in drawn])

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """float32 (M, vocab) -> int64 (M,) token ids."""
        if not self._sampled:
            return logits.argmax(-1)
        if self._all_sampled:
            return self._draw(self.filter(logits))
        tokens = logits.argmax(-1)
        tokens[self._index] = self._draw(self.filter(logits[self._index]))
        return tokens

    def filter(self, logits: torch.Tensor) -> torch.Tensor:
        """Scores of the sampled rows alone, (S, vocab): scaled, and -inf where filtered out."""
        scores = logits / self._temperature
        if self._top_k is not None:
            scores = self._top_k.keep(scores)
        if self._top_p is not None:
            scores = _keep_top_p(scores, self._top_p)
        if self._min_p is not None:
            scores = _keep_min_p(scores, self._min_p)
        return scores

    def _draw(self, scores: torch.Tensor) -> torch.Tensor:
        """Invert each row's cumulative distribution, in vocabulary order, at its own uniform.

        Vocabulary order, not sorted order: there, two near-equal scores that swap places between
        two batch shapes would change the token drawn.
        """
        uniform = torch.empty(len(self._generators), dtype=torch.float64, pin_memory=self._pinned)
        for place, generator in zip(uniform, self._generators, strict=True):
            torch.rand((), generator=generator, dtype=torch.float64, out=place)
        uniform = uniform.to(self._device, non_blocking=True)[:, None]
        cumulative = scores.softmax(-1).double().cumsum(-1)
        targets = uniform * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, targets, right=True)[:, 0]
        return tokens.clamp_(max=scores.shape[-1] - 1)

    def _top_p_limits(self, top_p: list[float]) -> torch.Tensor | None:
        if all(p >= 1 for p in top_p):
            return None
        # A limit below 0 removes nothing: rows without top-p beside rows with it.
        return self._column([1.0 - p if p < 1 else -1.0 for p in top_p])

    def _column(self, values: list[float]) -> torch.Tensor:
        return upload(values, self._device, torch.float32)[:, None]


def _generator(row: RowSampling) -> torch.Generator:
    if row.generator is None:
        raise ValueError("a sampled row needs a generator; use make_generator")
    return row.generator


@dataclass(frozen=True, slots=True, eq=False)
class _TopK:
    """The top-k filter of some rows."""

    largest: int
    last: torch.Tensor
    """Int64 (S, 1): place of the row's k-th highest score."""
    on: torch.Tensor
    """Bool (S, 1)."""

    @classmethod
    def of(cls, top_k: list[int], device: torch.device) -> _TopK | None:
        """None if no row has the filter; a k of 0 or less keeps all."""
        largest = max(top_k)
        if largest <= 0:
            return None
        last = upload([max(k, 1) - 1 for k in top_k], device)[:, None]
        return cls(largest, last, upload([k > 0 for k in top_k], device, torch.bool)[:, None])

    def keep(self, scores: torch.Tensor) -> torch.Tensor:
        """Keep scores not below the row's k-th highest (ties stay)."""
        vocab = scores.shape[-1]
        highest = scores.topk(min(self.largest, vocab)).values
        bound = highest.gather(-1, self.last.clamp(max=vocab - 1))
        return scores.masked_fill(self.on & (scores < bound), -torch.inf)


def _keep_top_p(scores: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Drop the least likely tokens whose summed probability stays within `limit` = 1 - top_p."""
    ascending, order = scores.sort(-1)
    drop = ascending.softmax(-1).cumsum(-1) <= limit
    drop[:, -1] = False
    return scores.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def _keep_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Drop tokens less likely than `min_p` times the most likely one."""
    probs = scores.softmax(-1)
    return scores.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), -torch.inf)
