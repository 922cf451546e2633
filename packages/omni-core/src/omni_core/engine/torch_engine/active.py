"""One admitted sequence: its KV pages, its sampling state, and when it ends.

Knows tokens, stop conditions and which rows come next. Knows nothing of batching or of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_core.engine.base import EngineRequest, Segment, Sequence, StepOutput, TokenLogprobs
from omni_core.engine.stop import StopTracker
from omni_core.engine.torch_engine.admission import output_limit
from omni_core.engine.torch_engine.memory import SequencePages
from omni_core.engine.torch_engine.rules import RowRules
from omni_core.engine.torch_engine.sampling import RowSampling
from omni_core.errors import OmniError
from omni_core.types import FinishReason, SamplingParams


class Verdict(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a new token means for the reply."""

    released: tuple[int, ...]
    held: bool
    finish_reason: FinishReason | None
    error: OmniError | None = None


def end_token_ids(params: SamplingParams, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end a reply and are no part of it."""
    eos = frozenset[int]() if params.ignore_eos else eos_token_ids
    return eos | frozenset(params.stop_token_ids or ())


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveSequence:
    """An opened sequence and all the engine keeps for it, through retractions too."""

    seq: Sequence
    sampling: RowSampling
    end_ids: frozenset[int]
    max_tokens: int
    """Tokens after which the reply ends, the context's end included."""
    stops: StopTracker | None
    kv: SequencePages | None = None
    """None while it does not run: retracted, or gone."""
    rules: RowRules | None = None
    """Of the row it has in `kv`."""
    in_flight: int = 0
    """Tokens sampled on the device that the host does not know yet."""
    cached_tokens: int = 0
    """Prompt rows found in the prefix cache when first admitted."""
    retracted: bool = False
    """At least once."""

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        *,
        eos_token_ids: frozenset[int],
        max_len: int,
        text: Callable[[list[int]], str],
    ) -> ActiveSequence:
        """A sequence at its first row."""
        params = request.sampling
        return cls(
            seq=Sequence(request=request),
            sampling=RowSampling.of(params),
            end_ids=end_token_ids(params, eos_token_ids),
            max_tokens=output_limit(request, max_len),
            stops=StopTracker(params.stop, text) if params.stop else None,
        )

    @property
    def known_rows(self) -> int:
        """Rows whose input the host knows but for the newest token's, which samples: after a
        retraction these are recomputed. Before the first token, the prompt without its last row."""
        return self.seq.request.prompt_len + len(self.seq.tokens) - 1

    @property
    def prefill_rows(self) -> int:
        """Rows to compute before the next decode step."""
        last_too = not self.seq.tokens and not self.seq.request.open_prompt
        return self.known_rows + last_too - self.seq.computed

    @property
    def waits_for_token(self) -> bool:
        """Whether what may come next depends on a token that the host does not know yet."""
        return self.in_flight > 0 and self.seq.request.constraint is not None

    @property
    def generated(self) -> int:
        """Tokens sampled, those in flight included."""
        return len(self.seq.tokens) + self.in_flight

    def segment(self, count: int) -> Segment:
        """The next `count` rows of a sequence in prefill."""
        seq, end = self.seq, self.seq.computed + count
        samples = not seq.tokens and end == seq.request.prompt_len
        return Segment(seq=seq, start=seq.computed, count=count, samples=samples)

    def decode_segment(self) -> Segment:
        """The row of the newest token, or the last of an open prompt."""
        return Segment(seq=self.seq, start=self.seq.computed, count=1, samples=True)

    def take(self, token: int) -> Verdict:
        """The host knows the oldest token in flight: keep it, and decide on it."""
        tokens = self.seq.tokens
        tokens.append(token)
        self.in_flight -= 1
        constraint = self.seq.request.constraint
        if constraint is not None and constraint.error is not None:
            return Verdict((), False, "stop", constraint.error)
        if token in self.end_ids:
            return Verdict(self._flush(), False, "stop")
        if constraint is not None:
            constraint.advance(token)
        if self.stops is None:
            return Verdict((token,), False, None if len(tokens) < self.max_tokens else "length")
        released, stopped = self.stops.push(token)
        if stopped:
            return Verdict(released, False, "stop")
        if len(tokens) >= self.max_tokens:
            return Verdict(released + self._flush(), False, "length")
        return Verdict(released, self.stops.holding, None)

    def output(
        self, token: int, verdict: Verdict, data: Any, logprobs: TokenLogprobs | None
    ) -> StepOutput:
        """What a step made of the sequence, once `take` has its token."""
        return StepOutput(
            request_id=self.seq.request_id,
            token=token,
            index=len(self.seq.tokens) - 1,
            data=data,
            held=verdict.held,
            released=verdict.released,
            logprobs=logprobs,
            cached_tokens=self.cached_tokens,
            finish_reason=verdict.finish_reason,
            error=verdict.error,
        )

    def _flush(self) -> tuple[int, ...]:
        return self.stops.flush() if self.stops else ()
