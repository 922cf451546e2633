"""One admitted sequence: its sampling state, its tokens, and when it ends.

Knows tokens and stop conditions. Knows nothing of batching or of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from omni_core.engine.base import EngineRequest, Sequence, StepOutput
from omni_core.engine.common.admission import output_limit
from omni_core.engine.common.rules import RowRules
from omni_core.engine.common.sampling import RowSampling
from omni_core.engine.stop import StopTracker
from omni_core.errors import OmniError
from omni_core.types import FinishReason, SamplingParams


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
    rules: RowRules | None = None
    """Of the row it has."""
    in_flight: int = 0
    """Tokens sampled on the device that the host does not know yet."""
    cached_tokens: int = 0
    """Prompt rows found in the prefix cache when first admitted."""

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        *,
        eos_token_ids: frozenset[int],
        max_len: int,
        text: Callable[[list[int]], str],
    ) -> Self:
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
    def waits_for_token(self) -> bool:
        """Whether what may come next depends on a token that the host does not know yet."""
        return self.in_flight > 0 and self.seq.request.constraint is not None

    @property
    def generated(self) -> int:
        """Tokens sampled, those in flight included."""
        return len(self.seq.tokens) + self.in_flight

    def take(self, token: int) -> StepOutput:
        """The host knows the oldest token in flight: keep it, and decide on it. `data` and
        `logprobs` of the output are for the engine to fill in."""
        tokens = self.seq.tokens
        tokens.append(token)
        self.in_flight -= 1
        constraint = self.seq.request.constraint
        if constraint is not None and constraint.error is not None:
            return self._output(token, (), "stop", error=constraint.error)
        if token in self.end_ids:
            return self._output(token, self._flush(), "stop")
        if constraint is not None:
            constraint.advance(token)
        if self.stops is None:
            return self._output(
                token, (token,), None if len(tokens) < self.max_tokens else "length"
            )
        released, stopped = self.stops.push(token)
        if stopped:
            return self._output(token, released, "stop")
        if len(tokens) >= self.max_tokens:
            return self._output(token, released + self._flush(), "length")
        return self._output(token, released, None, held=self.stops.holding)

    def _output(
        self,
        token: int,
        released: tuple[int, ...],
        finish_reason: FinishReason | None,
        held: bool = False,
        error: OmniError | None = None,
    ) -> StepOutput:
        seq = self.seq
        return StepOutput(
            request_id=seq.request.request_id,
            token=token,
            index=len(seq.tokens) - 1,
            held=held,
            released=released,
            cached_tokens=self.cached_tokens,
            finish_reason=finish_reason,
            error=error,
        )

    def _flush(self) -> tuple[int, ...]:
        return self.stops.flush() if self.stops else ()
