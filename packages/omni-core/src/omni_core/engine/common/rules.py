"""Changes to logits before sampling: penalties, bias, and tokens that may not come (yet).

Knows the sampling parameters of each row. Knows nothing of drawing tokens.

Order, as in transformers where it has the rule: repetition penalty, presence and frequency
penalties, bias, then the masks (suppressed ids, end tokens before `min_tokens`, constraints). A
constraint has the last word: where only end tokens may come, one comes before `min_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omni_core.engine.base import TokenConstraint
from omni_core.engine.common.transfer import upload
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
    bias: tuple[torch.Tensor, torch.Tensor] | None
    """Token ids, and what to add to each; None is off."""
    min_tokens: int
    end_ids: torch.Tensor
    constraint: TokenConstraint | None = None

    @classmethod
    def of(
        cls,
        row: int,
        params: SamplingParams,
        end_ids: frozenset[int],
        device: torch.device,
        constraint: TokenConstraint | None = None,
    ) -> RowRules:
        """Rules from resolved parameters; unset fields are off."""
        bias = params.logit_bias or {}
        repetition = params.repetition_penalty
        return cls(
            row=row,
            repetition=1.0 if repetition is None else repetition,
            presence=params.presence_penalty or 0.0,
            frequency=params.frequency_penalty or 0.0,
            bias=_tensors(bias, device) if bias else None,
            min_tokens=params.min_tokens or 0,
            end_ids=upload(sorted(end_ids), device),
            constraint=constraint,
        )

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens matter to this row."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


def _tensors(bias: dict[int, float], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return upload(list(bias), device), upload(list(bias.values()), device, torch.float32)


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
    if params.logprobs is not None and params.logprobs < 0:
        raise RequestError("logprobs must not be negative", param="logprobs")
    if params.grammar is not None and params.ignore_eos:
        raise RequestError(
            "a response format, or a call that must be, says where the reply ends; leave this out",
            param="ignore_eos",
        )


class LogitsRules:
    """The rules of every row of the running batch, and the tokens seen by rows that penalise."""

    def __init__(
        self, rows: int, vocab_size: int, suppress: torch.Tensor | None, device: torch.device
    ) -> None:
        self.suppress = suppress
        self._shape = (rows, vocab_size)
        self.device = device
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, vocab) each: bool, in the prompt; int32, times generated. Made on first use."""
        if self._tables is None:
            self._tables = (
                torch.zeros(self._shape, dtype=torch.bool, device=self.device),
                torch.zeros(self._shape, dtype=torch.int32, device=self.device),
            )
        return self._tables

    def open(
        self, rules: RowRules, prompt_token_ids: Sequence[int], tokens: Sequence[int] = ()
    ) -> None:
        """Start a sequence in its row, or go on with one that has `tokens` already."""
        if not rules.penalises:
            return
        in_prompt, generated = self.seen()
        in_prompt[rules.row] = False
        in_prompt[rules.row, torch.tensor(prompt_token_ids, dtype=torch.long)] = True
        counts = torch.bincount(torch.tensor(tokens, dtype=torch.long), minlength=self._shape[1])
        generated[rules.row] = counts.to(generated)

    def batch(self, rules: Sequence[RowRules]) -> BatchRules:
        """The rules of the rows of one batch, in its order; good for many steps of it."""
        return BatchRules(self, rules, self.device)


class BatchRules:
    """The rules of one batch, prepared once. Without any, its methods do nothing."""

    def __init__(self, table: LogitsRules, rules: Sequence[RowRules], device: torch.device) -> None:
        self._table = table
        self._biased = [(i, *r.bias) for i, r in enumerate(rules) if r.bias]
        self._early = [(i, r) for i, r in enumerate(rules) if r.min_tokens and not r.constraint]
        self._constraints = _Constraints.of(rules, device)
        penalised = [i for i, r in enumerate(rules) if r.penalises]
        self._index: torch.Tensor | None = None
        if penalised:
            self._index = upload(penalised, device)
            self._rows = upload([rules[i].row for i in penalised], device)
            factors = [
                [getattr(rules[i], name) for i in penalised]
                for name in ("repetition", "presence", "frequency")
            ]
            self._factors = upload(factors, device, torch.float32)[:, :, None]

    def count(self, tokens: torch.Tensor) -> None:
        """Remember the tokens (M,) just sampled."""
        if self._index is not None:
            _, generated = self._table.seen()
            generated[self._rows, tokens[self._index]] += 1

    def apply(self, logits: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """float32 (M, vocab) logits, changed in place; `lengths` tokens were generated so far."""
        if self._index is not None:
            logits[self._index] = self._penalise(logits[self._index])
        for i, ids, bias in self._biased:
            logits[i, ids] += bias
        for i, rules in self._early:
            if lengths[i] < rules.min_tokens:
                logits[i, rules.end_ids] = -torch.inf
        if self._table.suppress is not None:
            logits.masked_fill_(self._table.suppress, -torch.inf)
        if self._constraints is not None:
            self._constraints.apply(logits, lengths)
        return logits

    def _penalise(self, logits: torch.Tensor) -> torch.Tensor:
        """Repetition as in transformers' `RepetitionPenaltyLogitsProcessor`, over prompt and reply;
        presence and frequency as in OpenAI's API reference, over the reply alone."""
        in_prompt, generated = self._table.seen()
        counts = generated[self._rows]
        seen = in_prompt[self._rows] | (counts > 0)
        repetition, presence, frequency = self._factors
        scaled = torch.where(logits < 0, logits * repetition, logits / repetition)
        logits = torch.where(seen, scaled, logits)
        return logits.sub_(counts * frequency + (counts > 0) * presence)


class _Constraints:
    """The rows of one batch that have a constraint."""

    def __init__(
        self, constrained: list[tuple[int, TokenConstraint, int]], device: torch.device
    ) -> None:
        """Of each its place in the batch, the constraint, and `min_tokens`."""
        self._constrained = constrained
        self._index = upload([place for place, _, _ in constrained], device)
        self._bits = upload(range(32), device, torch.int32)

    @classmethod
    def of(cls, rules: Sequence[RowRules], device: torch.device) -> _Constraints | None:
        """None if there are none."""
        constrained = [
            (i, r.constraint, r.min_tokens) for i, r in enumerate(rules) if r.constraint is not None
        ]
        return cls(constrained, device) if constrained else None

    def apply(self, logits: torch.Tensor, lengths: Sequence[int]) -> None:
        """Leave (M, vocab) logits only of what may come, in place."""
        words = np.stack(
            [
                constraint.allowed(may_end=lengths[place] >= min_tokens)
                for place, constraint, min_tokens in self._constrained
            ]
        )
        on_device = upload(words, logits.device, torch.int32)
        allowed = (on_device[:, :, None] >> self._bits) & 1
        allowed = allowed.flatten(1)[:, : logits.shape[-1]].bool()
        logits[self._index] = logits[self._index].masked_fill(~allowed, -torch.inf)
