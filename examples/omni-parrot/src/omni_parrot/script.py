"""How much of a text is said again: up to a stop string, or as many words as were asked for.

A word is what stands between white space; it is this model's token.
"""

from __future__ import annotations

import re
from math import inf

from omni_core.engine.stop import StopMatcher
from omni_core.types import FinishReason, SamplingParams

_WORD = re.compile(r"\s*\S+")


class Script:
    """The text of one reply, as it is heard."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._stops = StopMatcher(sampling.stop or ())
        self._left = inf if sampling.max_tokens is None else sampling.max_tokens
        self._held = ""
        """Heard, and perhaps the begin of a stop string."""
        self._safe = 0
        self.words = 0
        """Heard so far, and within the limit."""
        self.finish: FinishReason | None = None
        """Once nothing more is said."""

    def push(self, heard: str) -> str:
        """Take whole words; what is certainly said again."""
        if self.finish is not None:
            return ""
        words = _WORD.findall(heard)
        allowed = words[: int(min(self._left, len(words)))]
        self._left -= len(allowed)
        self.words += len(allowed)
        said = self._certain("".join(allowed))
        if self.finish is None and len(allowed) < len(words):
            said += self.flush()
            self.finish = "length"
        return said

    def flush(self) -> str:
        """All is heard: what was held back."""
        said, self._held = self._held, ""
        self.finish = self.finish or "stop"
        return said

    def _certain(self, text: str) -> str:
        state = self._stops.push(text)
        self._held += text
        said = self._held[: state.safe - self._safe]
        self._held = self._held[len(said) :]
        self._safe = state.safe
        if state.stopped:
            self._held, self.finish = "", "stop"
        return said
