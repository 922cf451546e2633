"""Where a text that is still coming can be cut, to be spoken piece by piece.

The first piece may end at a comma, so that the voice begins early; later ones are sentences. A
sentence that is too long is cut at clauses, then anywhere between words.
"""

from __future__ import annotations

import re
from typing import Final

FIRST_WORDS: Final = 3
"""A first piece has at least so many."""
LONG: Final = 160
"""Characters from which on a sentence is cut at its clauses."""
LONGEST: Final = 320

_SENTENCE_END = re.compile(r"[.!?…]+[\"')\]\u201d\u2019]*(?=\s)|\n+")
_CLAUSE_END = re.compile(r"[,;:—](?=\s)")
_TITLE = re.compile(r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e)\.$")


class Sentences:
    """The pieces of one text."""

    def __init__(self) -> None:
        self._text = ""
        self._begun = False

    def push(self, text: str) -> list[str]:
        """Take more text; the pieces that are complete now."""
        self._text += text
        pieces = []
        while (end := self._cut()) is not None:
            pieces += self._take(end)
        return pieces

    def flush(self) -> list[str]:
        """The text has ended; what is left of it, in one or several pieces."""
        return [*self.push(" "), *self._take(len(self._text))]

    def _take(self, end: int) -> list[str]:
        piece, self._text = self._text[:end].strip(), self._text[end:]
        if not any(character.isalnum() for character in piece):
            return []  # nothing to say
        self._begun = True
        return [piece]

    def _cut(self) -> int | None:
        """Where the next piece ends, if that is certain."""
        sentence = self._first_sentence()
        if not self._begun:
            for found in _CLAUSE_END.finditer(self._text, 0, sentence or len(self._text)):
                if len(self._text[: found.end()].split()) >= FIRST_WORDS:
                    return found.end()
        if sentence is not None and sentence <= LONG:
            return sentence
        if len(self._text) <= LONG:
            return None
        clauses = [m.end() for m in _CLAUSE_END.finditer(self._text, 0, LONG)]
        if clauses:
            return clauses[-1]
        if sentence is not None and sentence <= LONGEST:
            return sentence
        if len(self._text) <= LONGEST:
            return None
        return self._text.rfind(" ", 1, LONGEST) + 1 or LONGEST

    def _first_sentence(self) -> int | None:
        for found in _SENTENCE_END.finditer(self._text):
            if not _TITLE.search(self._text[: found.end()]):
                return found.end()
        return None
