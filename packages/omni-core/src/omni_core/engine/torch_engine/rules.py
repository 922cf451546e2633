"""Changes to logits before sampling: penalties, bias, and tokens that may not come (yet).

Knows the sampling parameters of each row. Knows nothing of drawing tokens.

Order, as in transformers where it has the rule: repetition penalty, presence and frequency
penalties, bias, then the masks (suppressed ids, end tokens before `min_tokens`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_core.errors import RequestError
from omni_core.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRules:
    """The rules of one sequence; `row` is its place in the running batch."""

    row: int
    repetition: float
    """1 is off."""
    presence: float
    frequency: float
    """0 is off."""
    bias_ids: torch.Tensor | None
    bias: torch.Tensor | None
    min_tokens: int
    end_ids: torch.Tensor

    @classmethod
    def of(
        cls, row: int, params: SamplingParams, end_ids: frozenset[int], device: torch.device
    ) -> RowRules:
        """Rules from resolved parameters; unset fields are off."""
        bias = params.logit_bias or {}
        repetition = params.repetition_penalty
        return cls(
            row=row,
            repetition=1.0 if repetition is None else repetition,
            presence=params.presence_penalty or 0.0,
            frequency=params.frequency_penalty or 0.0,
            bias_ids=torch.tensor(list(bias), device=device) if bias else None,
            bias=torch.tensor(list(bias.values()), device=device) if bias else None,
            min_tokens=params.min_tokens or 0,
            end_ids=torch.tensor(sorted(end_ids), dtype=torch.long, device=device),
        )

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens matter to this row."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """RequestError for what would break a whole batch: unknown token ids, an impossible penalty."""
    for param, ids in (
        ("logit_bias", tuple(params.logit_bias or ())),
        ("stop_token_ids", params.stop_token_ids or ()),
    ):
        if wrong := [i for i in ids if not 0 <= i < vocab_size]:
            raise RequestError(
                f"{param}: token ids {wrong} are not below {vocab_size}", param=param
            )
    if params.repetition_penalty is not None and params.repetition_penalty <= 0:
        raise RequestError("repetition_penalty must be above 0", param="repetition_penalty")


class LogitsRules:
    """Applies `RowRules` to a batch and counts tokens for the rows that penalise."""

    def __init__(
        self, rows: int, vocab_size: int, suppress: torch.Tensor | None, device: torch.device
    ) -> None:
        self._suppress = suppress
        self._shape = (rows, vocab_size)
        self._device = device
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def _seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, vocab) each: bool, in the prompt; int32, times generated. Made on first use."""
        if self._tables is None:
            self._tables = (
                torch.zeros(self._shape, dtype=torch.bool, device=self._device),
                torch.zeros(self._shape, dtype=torch.int32, device=self._device),
            )
        return self._tables

    def open(self, rules: RowRules, prompt_token_ids: Sequence[int]) -> None:
        """Start a sequence in its row."""
        if not rules.penalises:
            return
        in_prompt, generated = self._seen()
        in_prompt[rules.row] = False
        in_prompt[rules.row, torch.tensor(prompt_token_ids, dtype=torch.long)] = True
        generated[rules.row] = 0

    def count(self, rules: Sequence[RowRules], tokens: torch.Tensor) -> None:
        """Remember the tokens (M,) just sampled for the rows `rules`."""
        index = [i for i, r in enumerate(rules) if r.penalises]
        if index:
            _, generated = self._seen()
            generated[[rules[i].row for i in index], tokens[index]] += 1

    def apply(
        self, logits: torch.Tensor, rules: Sequence[RowRules], lengths: Sequence[int]
    ) -> torch.Tensor:
        """float32 (M, vocab) logits, changed in place; `lengths` tokens were generated so far."""
        penalised = [i for i, r in enumerate(rules) if r.penalises]
        if penalised:
            logits[penalised] = self._penalise(logits[penalised], [rules[i] for i in penalised])
        for i, r in enumerate(rules):
            if r.bias_ids is not None and r.bias is not None:
                logits[i, r.bias_ids] += r.bias
            if lengths[i] < r.min_tokens:
                logits[i, r.end_ids] = -torch.inf
        if self._suppress is not None:
            logits.masked_fill_(self._suppress, -torch.inf)
        return logits

    def _penalise(self, logits: torch.Tensor, rules: Sequence[RowRules]) -> torch.Tensor:
        """Repetition as in transformers' `RepetitionPenaltyLogitsProcessor`, over prompt and reply;
        presence and frequency as in OpenAI's API reference, over the reply alone."""
        rows = [r.row for r in rules]
        in_prompt, generated = self._seen()
        counts = generated[rows]
        seen = in_prompt[rows] | (counts > 0)
        repetition, presence, frequency = torch.tensor(
            [[r.repetition, r.presence, r.frequency] for r in rules], device=self._device
        ).T[:, :, None]
        scaled = torch.where(logits < 0, logits * repetition, logits / repetition)
        logits = torch.where(seen, scaled, logits)
        return logits.sub_(counts * frequency + (counts > 0) * presence)
