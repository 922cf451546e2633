"""Thoughts and answer of a reply, told apart by the tags around the thoughts.

Knows text that grows piece by piece, however a tag is cut. Knows nothing of tokens or stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from omni_core.types import Channel

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
_TAGS: Final[Mapping[Channel, tuple[str, ...]]] = {
    "content": (OPEN,),
    "reasoning": (OPEN, CLOSE),  # templates that open a thought meet models that open it again
}

Run = tuple[Channel, str]
"""Text of one channel."""


def left_open(prompt_end: str) -> bool:
    """Whether the text that a reply continues has begun a thought without ending it."""
    return prompt_end.rfind(OPEN) > prompt_end.rfind(CLOSE)


class ReasoningSplitter:
    """Text in, runs of reasoning and content out; the tags and the newlines after them are dropped.

    Text that may yet become a tag is held back until it is or is not one.
    """

    def __init__(self, *, opened: bool) -> None:
        """`opened`: the prompt has begun a thought, so the reply starts inside it."""
        self.channel: Channel = "reasoning" if opened else "content"
        self._after_tag = opened
        self._held = ""

    def push(self, text: str) -> list[Run]:
        """Take more text; the runs that are certain now."""
        runs: list[Run] = []
        rest = self._held + text
        while (found := self._next_tag(rest)) is not None:
            at, tag = found
            self._add(runs, rest[:at])
            rest = rest[at + len(tag) :]
            self.channel = "reasoning" if tag == OPEN else "content"
            self._after_tag = True
        certain = len(rest) - self._possible_start(rest)
        self._held = rest[certain:]
        self._add(runs, rest[:certain])
        return runs

    def flush(self) -> list[Run]:
        """What is left at the end of the reply."""
        runs: list[Run] = []
        self._add(runs, self._held)
        self._held = ""
        return runs

    def _next_tag(self, text: str) -> tuple[int, str] | None:
        found = [(at, tag) for tag in _TAGS[self.channel] if (at := text.find(tag)) >= 0]
        return min(found, default=None)

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that a tag begins with."""
        for size in range(min(len(text), len(CLOSE) - 1), 0, -1):
            if any(tag.startswith(text[-size:]) for tag in _TAGS[self.channel]):
                return size
        return 0

    def _add(self, runs: list[Run], text: str) -> None:
        if self._after_tag:
            text = text.lstrip("\n")
        if text:
            self._after_tag = False
            runs.append((self.channel, text))


class ContentOnly:
    """The splitter of models that do not reason: all text is content, tags included."""

    channel: Channel = "content"

    def push(self, text: str) -> list[Run]:
        """All of it."""
        return [("content", text)] if text else []

    def flush(self) -> list[Run]:
        """Nothing is ever held."""
        return []
