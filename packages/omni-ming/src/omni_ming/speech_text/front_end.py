"""Text that grows character by character to utterances, as early as the authors' rules allow.

What comes out depends on the text alone, not on how it was cut when it came. Knows nothing of
tokens, voices or sound.
"""

from __future__ import annotations

import textwrap

from omni_ming.payloads import Utterance
from omni_ming.speech_text.cutting import MAX_LENGTH, cut
from omni_ming.speech_text.numbers import without_grouping, write_numbers
from omni_ming.speech_text.scripts import is_chinese, is_speakable, semantic_length

FIRST_LEAST = 12
"""Characters before the mark that may end the first utterance."""
LATER_LEAST = 8
MOST_OTHERS = 200
"""Of one utterance, characters whose length the authors' rules do not count: letters of other
scripts, marks, spaces, and digits at `DIGIT` each."""
DIGIT = 5
"""Characters that a digit takes in words, about: one of them may be a word of its own."""
MOST_CHARACTERS = 600
"""Of one utterance, whatever they are, before numbers are written and after: to the authors' rules
a word of any length is one word, and a unit may be three in words."""
_COMMAS = ",，、;；"
_ENDS = "！？。，!?"


class FrontEnd:
    """The utterances of one reply."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._length = 0
        """Semantic length of what waits, if all of it ended here; see `_take`."""
        self._others = 0
        """What the authors' rules do not count in what waits."""
        self._is_rest = False
        """What waits is the rest of a text that was too long."""
        self._spoken = False
        """An utterance has ended at a mark."""

    def push(self, text: str) -> list[Utterance]:
        """Take more text; the utterances that are complete now."""
        return [utterance for character in text for utterance in self._take(character)]

    def flush(self) -> list[Utterance]:
        """The text is over: what is left, if there is anything to say."""
        pieces = cut(self._text(), is_rest=self._is_rest)
        self._wait_with("", is_rest=False)
        return self._spell(pieces)

    def _take(self, character: str) -> list[Utterance]:
        least = LATER_LEAST if self._spoken else FIRST_LEAST
        enough = len(self._waiting) + (character == "\n") >= least
        if character == "\n":
            self._end_line()
        else:
            self._waiting.append(character)
        if enough and self._ends(character):
            made = self.flush()
            self._spoken = True
            return made
        return self._overflow(character)

    def _end_line(self) -> None:
        """A line's end is a comma between Chinese lines and nothing elsewhere."""
        if self._waiting and is_chinese(self._waiting[-1]):
            self._waiting.append("，")

    def _ends(self, character: str) -> bool:
        if character == ".":
            return len(self._waiting) < 2 or not self._waiting[-2].isdigit()
        return character == "\n" or character in _ENDS

    def _overflow(self, character: str) -> list[Utterance]:
        """Speak what is longer than one utterance already, though no mark has ended it: the authors
        wait for one, which may never come."""
        self._length += _counts(character)
        self._others += _others(character)
        if self._others > MOST_OTHERS or len(self._waiting) > MOST_CHARACTERS:
            return self._break()
        if self._length <= MAX_LENGTH:
            return []
        text = self._text()
        self._length = semantic_length(text)
        if self._length <= MAX_LENGTH:
            return []
        *whole, rest = cut(text, is_rest=True)
        # Not with the mark of a sentence that has not ended.
        self._wait_with(rest.removesuffix("。"), is_rest=True)
        return self._spell(whole)

    def _break(self) -> list[Utterance]:
        """Speak what waits up to its last space, else comma, if any: its script may have no marks
        of ours."""
        text = "".join(self._waiting)
        comma = max(text.rfind(mark) for mark in _COMMAS)
        end = text.rfind(" ") + 1 or comma + 1 or len(text)
        self._wait_with(text[end:], is_rest=self._is_rest)
        return self._spell([text[:end].strip()])

    def _text(self) -> str:
        """What waits; not cut at a comma within an English number, which the authors do."""
        text = "".join(self._waiting)
        return text if is_chinese(text) else without_grouping(text)

    def _wait_with(self, text: str, *, is_rest: bool) -> None:
        self._waiting, self._is_rest = list(text), is_rest
        self._length, self._others = semantic_length(text), sum(map(_others, text))

    def _spell(self, pieces: list[str]) -> list[Utterance]:
        texts = [text.removeprefix("，") for piece in pieces for text in _written(piece)]
        return [Utterance(text=t, continues=not self._spoken) for t in texts if is_speakable(t)]


def _written(piece: str) -> list[str]:
    """With numbers in words; in several pieces where that is too long."""
    if is_chinese(piece):
        return [piece]
    return textwrap.wrap(write_numbers(piece), MOST_CHARACTERS, break_on_hyphens=False)


def _counts(character: str) -> bool:
    """Whether the authors' rules see it: as a character, or as part of a word."""
    return is_chinese(character) or (character.isascii() and character.isalpha())


def _others(character: str) -> int:
    if _counts(character):
        return 0
    return DIGIT if character.isdigit() else 1


def utterances(text: str) -> list[Utterance]:
    """Of a whole text."""
    front_end = FrontEnd()
    return [*front_end.push(text), *front_end.flush()]


def has_speech(text: str) -> bool:
    """Whether a whole text has utterances; reads no further than the first."""
    front_end = FrontEnd()
    return any(front_end.push(character) for character in text) or bool(front_end.flush())
