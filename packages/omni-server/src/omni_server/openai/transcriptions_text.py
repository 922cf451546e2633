"""What the segments of a recording said, put together as it comes.

Knows events and how texts of neighbouring segments join. Knows no format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from omni_core.errors import StageError
from omni_core.types import Event, Finished, TextDelta, TokenLogprob, Usage

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff00-\uffef]"
)
"""Thai, Lao, Burmese, Khmer, Chinese, Japanese and full-width signs: no space between sentences."""


@dataclass(slots=True)
class SegmentText:
    """What one segment said."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def was_asked(self) -> bool:
        """Whether the pipeline was asked, which it is not about digital silence."""
        return self.finished is not None and self.finished.usage.prompt_tokens > 0


class Transcript:
    """Texts of segments joined by single spaces, or by nothing where the script has none.

    White space around a segment's text is dropped, so what follows a word is held back until more
    follows it: the deltas join to the whole text exactly.
    """

    def __init__(self, n_segments: int) -> None:
        self.segments = [SegmentText() for _ in range(n_segments)]
        self.usage = Usage()
        self._pieces: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """All that was said so far."""
        return "".join(self._pieces)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Of all tokens that were reported so far."""
        return [token for segment in self.segments for token in segment.logprobs]

    def hear(self, index: int, event: Event) -> str:
        """Take one event of a segment, segments in order; the text that it adds to the whole."""
        segment = self.segments[index]
        match event:
            case TextDelta(channel="content"):
                segment.token_ids += event.token_ids
                segment.logprobs += event.logprobs
                return self._add(segment, event.text)
            case Finished():
                segment.finished = event
                self.usage += event.usage
                self._held = ""
        return ""

    def check_complete(self) -> None:
        """StageError unless every segment has ended."""
        if any(segment.finished is None for segment in self.segments):
            raise StageError("The pipeline ended a request without finishing it.")

    def _add(self, segment: SegmentText, text: str) -> str:
        said = self._held + text
        body = said.rstrip()
        if not body.strip():
            self._held = said if segment.text else ""
            return ""
        self._held = said[len(body) :]
        if segment.text:
            delta = body
        else:
            body = body.lstrip()
            delta = self._separator(body[0]) + body
        segment.text += body
        self._pieces.append(delta)
        return delta

    def _separator(self, first: str) -> str:
        last = self._pieces[-1][-1] if self._pieces else ""
        if not last or (_UNSPACED.match(last) and _UNSPACED.match(first)):
            return ""
        return " "
