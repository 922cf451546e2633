"""Text that grows character by character to utterances, as early as the authors' rules allow.

What comes out depends on the text alone, not on how it was cut when it came. Knows nothing of
tokens, voices or sound.
"""

from __future__ import annotations

from omni_ming.payloads import Utterance
from omni_ming.speech_text.cutting import MAX_LENGTH, cut
from omni_ming.speech_text.numbers import write_numbers
from omni_ming.speech_text.scripts import is_chinese, is_speakable, semantic_length

FIRST_LEAST = 12
"""Characters before the mark that may end the first utterance."""
LATER_LEAST = 8
MOST_OTHERS = 200
"""Letters of scripts whose length the authors' rules do not count, in one utterance."""
_ENDS = "！？。，!?"


class FrontEnd:
    """The utterances of one reply."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._length = 0
        """Semantic length of what waits, if all of it ended here; see `_take`."""
        self._others = 0
        """Letters of other scripts in what waits."""
        self._is_rest = False
        """What waits is the rest of a text that was too long."""
        self._spoken = False
        """An utterance has ended at a mark."""

    def push(self, text: str) -> list[Utterance]:
        """Take more text; the utterances that are complete now."""
        return [utterance for character in text for utterance in self._take(character)]

    def flush(self) -> list[Utterance]:
        """The text is over: what is left, if there is anything to say."""
        pieces = cut("".join(self._waiting), is_rest=self._is_rest)
        self._waiting, self._length, self._others, self._is_rest = [], 0, 0, False
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
        counts = is_chinese(character) or (character.isascii() and character.isalpha())
        self._length += counts
        self._others += character.isalpha() and not counts
        if self._others > MOST_OTHERS:
            return self._break()
        if self._length <= MAX_LENGTH:
            return []
        text = "".join(self._waiting)
        self._length = semantic_length(text)
        if self._length <= MAX_LENGTH:
            return []
        *whole, rest = cut(text, is_rest=True)
        rest = rest.removesuffix("。")  # the mark of a sentence that has not ended
        self._waiting, self._length, self._is_rest = list(rest), semantic_length(rest), True
        return self._spell(whole)

    def _break(self) -> list[Utterance]:
        """Speak what waits up to its last space, if any: its script may have no marks of ours."""
        text = "".join(self._waiting)
        end = text.rfind(" ") + 1 or len(text)
        self._waiting, self._others = list(text[end:]), len(text) - end
        return self._spell([text[:end].strip()])

    def _spell(self, pieces: list[str]) -> list[Utterance]:
        texts = [piece if is_chinese(piece) else write_numbers(piece) for piece in pieces]
        texts = [text.removeprefix("，") for text in texts]
        return [Utterance(text=t, continues=not self._spoken) for t in texts if is_speakable(t)]


def utterances(text: str) -> list[Utterance]:
    """Of a whole text."""
    front_end = FrontEnd()
    return [*front_end.push(text), *front_end.flush()]
