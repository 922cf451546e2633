"""How much of a spoken reply's text was heard, when the listener stopped it.

Knows text and milliseconds. The text is ahead of the sound, and nobody says where each word is: it
is taken to be spoken evenly.
"""

from __future__ import annotations

import re
from typing import Final

USUAL_RATE: Final = 16.0
"""Letters of an alphabet in a second of speech."""
_SYLLABIC: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]")
_SYLLABLE: Final = 3.0
"""Letters that take as long as one sign of these scripts."""


def weight(text: str) -> float:
    """How long a text is to speak, in letters."""
    return len(text) + (_SYLLABLE - 1) * len(_SYLLABIC.findall(text))


def heard_text(text: str, heard_ms: int, whole_ms: int | None) -> str:
    """The beginning of `text` that was heard, in whole words.

    `whole_ms` is how long all of it takes; None if the reply ended before that was known.
    """
    if heard_ms <= 0:
        return ""
    if whole_ms is not None and heard_ms >= whole_ms:
        return text
    rate = weight(text) / whole_ms if whole_ms else USUAL_RATE / 1000
    left = rate * heard_ms
    for index, letter in enumerate(text):
        left -= weight(letter)
        if left < 0:
            return _whole_words(text, index)
    return text


def _whole_words(text: str, end: int) -> str:
    if text[end].isspace() or _SYLLABIC.match(text[end]):
        return text[:end].rstrip()
    words = re.search(rf"^.*(?:\s|{_SYLLABIC.pattern})", text[:end], re.DOTALL)
    return words[0].rstrip() if words else ""
