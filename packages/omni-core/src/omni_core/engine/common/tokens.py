"""From logits to one token a sequence: rules, draws and log-probabilities of a step together.

Knows which sequences sample, and keeps the newest token of every row on the device. Knows nothing
of what a token means for a reply.

What a batch needs (indices, factors, settings) is prepared when its members change, not every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from omni_core.engine.base import TokenLogprobs
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.common.logprobs import BatchLogprobs
from omni_core.engine.common.rules import LogitsRules, RowRules
from omni_core.engine.common.sampling import BatchSampler
from omni_core.engine.common.transfer import StartCopy, TokenCopy, upload


class Draw(msgspec.Struct, frozen=True, eq=False):
    """Tokens of one step, on their way to the host."""

    copy: TokenCopy
    read: Callable[[Sequence[torch.Tensor]], dict[int, TokenLogprobs]]

    def wait(self) -> tuple[list[int], dict[int, TokenLogprobs]]:
        """The tokens, and the log-probabilities of the places that ask for them."""
        tokens, *rest = self.copy.wait()
        return tokens.tolist(), self.read(rest)


class _Members:
    """What is prepared for a batch of sequences."""

    def __init__(
        self, key: list[RowRules], active: Sequence[ActiveSequence], table: LogitsRules
    ) -> None:
        device = table.device
        self.key = key
        self.rows = upload([a.seq.row for a in active], device)
        self.rules = table.batch(key)
        self.sampler = BatchSampler([a.sampling for a in active], device)
        self.logprobs = BatchLogprobs([a.seq.request.sampling.logprobs for a in active], device)


class TokenSampler:
    """Draws tokens for the running batch."""

    def __init__(
        self,
        rows: int,
        vocab_size: int,
        suppress: torch.Tensor | None,
        device: torch.device,
        start_copy: StartCopy,
        agreed: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """`agreed` says what counts of the drawn tokens; None for those themselves."""
        self._rules = LogitsRules(rows, vocab_size, suppress, device)
        self._start_copy = start_copy
        self._agreed = agreed
        self._newest = torch.zeros(rows, dtype=torch.long, device=device)
        self._members = _Members([], [], self._rules)
        self._drawn = self._members.rows
        """Tokens of the members."""

    def seat(self, active: ActiveSequence) -> None:
        """A sequence has a new row: its rules, and the tokens it had before a retraction."""
        seq = active.seq
        device = self._rules.device
        request = seq.request
        active.rules = RowRules.of(
            seq.row, request.sampling, active.end_ids, device, request.constraint
        )
        self._rules.open(active.rules, request.prompt_token_ids, seq.tokens)
        if seq.tokens:
            self._newest[seq.row] = seq.tokens[-1]

    def decode_rows(self, active: Sequence[ActiveSequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the batch and newest tokens (D,) of sequences; mostly those that drew last."""
        if [a.rules for a in active] == self._members.key:
            return self._members.rows, self._drawn
        rows = upload([a.seq.row for a in active], self._rules.device)
        return rows, self._newest[rows]

    def draw(self, active: Sequence[ActiveSequence], logits: torch.Tensor) -> Draw:
        """One token for each, from float32 (M, vocab) logits, which it overwrites."""
        members = self._prepared(active)
        raw = members.logprobs.before_rules(logits)
        logits = members.rules.apply(logits, [a.generated for a in active])
        tokens = members.sampler(logits)
        if self._agreed is not None:
            tokens = self._agreed(tokens)
        members.rules.count(tokens)
        self._newest[members.rows] = self._drawn = tokens
        rest = members.logprobs.of_tokens(raw, tokens)
        return Draw(self._start_copy([tokens, *rest]), members.logprobs.read)

    def _prepared(self, active: Sequence[ActiveSequence]) -> _Members:
        key = [a.rules for a in active if a.rules is not None]
        if key != self._members.key:  # rules have no equality: the very same rows
            self._members = _Members(key, active, self._rules)
        return self._members
