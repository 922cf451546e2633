"""One admitted sequence: its KV pages, its sampling state, and when it ends.

Knows tokens and stop conditions. Knows nothing of batching or tensors of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omni_core.engine.base import Segment, Sequence
from omni_core.engine.stop import StopTracker
from omni_core.engine.torch_engine.kv import Reservation
from omni_core.engine.torch_engine.rules import RowRules
from omni_core.engine.torch_engine.sampling import RowSampling
from omni_core.types import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a new token means for the reply."""

    released: tuple[int, ...]
    held: bool
    finish_reason: FinishReason | None


def end_token_ids(params: SamplingParams, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end a reply and are no part of it."""
    eos = frozenset[int]() if params.ignore_eos else eos_token_ids
    return eos | frozenset(params.stop_token_ids or ())


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveSequence:
    """A running sequence and all the engine holds for it."""

    seq: Sequence
    kv: Reservation
    rules: RowRules
    sampling: RowSampling
    end_ids: frozenset[int]
    max_tokens: int
    """Tokens after which the reply ends, the context's end included."""
    stops: StopTracker | None

    def next_segment(self, budget: int) -> Segment:
        """The next row to decode, or the next at most `budget` rows of the prompt."""
        start, prompt_len = self.seq.computed, self.seq.request.prompt_len
        if not self.seq.in_prefill:
            return Segment(seq=self.seq, start=start, count=1, samples=True)
        count = min(budget, prompt_len - start)
        return Segment(seq=self.seq, start=start, count=count, samples=start + count == prompt_len)

    def judge(self, token: int) -> Verdict:
        """Decide on the token just appended to `seq.tokens`."""
        if token in self.end_ids:
            return Verdict(self._flush(), held=False, finish_reason="stop")
        released, stopped = self.stops.push(token) if self.stops else ((token,), False)
        if stopped:
            return Verdict(released, held=False, finish_reason="stop")
        if len(self.seq.tokens) >= self.max_tokens:
            return Verdict(released + self._flush(), held=False, finish_reason="length")
        held = self.stops is not None and self.stops.holding
        return Verdict(released, held=held, finish_reason=None)

    def _flush(self) -> tuple[int, ...]:
        return self.stops.flush() if self.stops else ()


def stop_tracker(params: SamplingParams, text: Callable[[list[int]], str]) -> StopTracker | None:
    """Watches for the request's stop strings; None if it has none."""
    return StopTracker(params.stop, text) if params.stop else None
