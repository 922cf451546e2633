"""An admitted sequence and its KV pages: which of its rows come next.

Knows what is computed and what is known. Knows nothing of batching or of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_core.engine.base import Segment
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.torch_engine.memory import SequencePages


@dataclass(slots=True, kw_only=True, eq=False)
class PagedSequence(ActiveSequence):
    """A sequence of the torch engine."""

    kv: SequencePages | None = None
    """None while it does not run: retracted, or gone."""
    retracted: bool = False
    """At least once."""

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

    def segment(self, count: int) -> Segment:
        """The next `count` rows of a sequence in prefill."""
        seq, end = self.seq, self.seq.computed + count
        samples = not seq.tokens and end == seq.request.prompt_len
        return Segment(seq=seq, start=seq.computed, count=count, samples=samples)

    def decode_segment(self) -> Segment:
        """The row of the newest token, or the last of an open prompt."""
        return Segment(seq=self.seq, start=self.seq.computed, count=1, samples=True)
