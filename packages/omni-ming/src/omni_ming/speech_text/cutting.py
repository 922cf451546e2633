"""Cutting a text that is too long for one utterance: at sentences, then clauses, then anywhere.

The rules are those that the model was trained and is published with, so that what it is given looks
as it knows it: in a text that is cut, sentence marks and commas are full-width. Knows no numbers.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from omni_ming.speech_text.scripts import semantic_length

MAX_LENGTH = 50
"""Semantic length of one utterance."""
MIN_TAIL = 5
"""A shorter clause joins the next one; a shorter sentence does not join the one before."""

_SENTENCE_ENDS = "。！？"
_CLAUSE_ENDS = "，;；"
_FULL_WIDTH = str.maketrans({".": "。", "!": "！", "?": "？", ",": "，"})
_BLANK = string.punctuation + string.whitespace
_LEADING = "，,:;" + string.whitespace
_KEPT_DOT = "\ue000"
"""Stands for a dot that ends nothing while the others become full-width."""
_UNITS = re.compile(r"[\u4e00-\u9fa5\ue000]|[a-zA-Z]+|[^a-zA-Z\u4e00-\u9fa5\ue000]+")


def cut(text: str, max_length: int = MAX_LENGTH, *, is_rest: bool = False) -> list[str]:
    """Pieces of at most `max_length`, none without content; one piece, as it is, if the text is no
    longer and is not the rest of one that was."""
    if not _has_content(text):
        return []
    text = _with_kept_dots(text).replace("\n", " ").replace("。，", "。")
    if not is_rest and _length(text) <= max_length:
        return [text.replace(_KEPT_DOT, ".")]
    pieces: list[str] = []
    for sentence in _sentences(text.translate(_FULL_WIDTH)):
        for clause in _joined(_clauses(sentence), max_length):
            for part in _hard_cut(clause, max_length):
                _append(pieces, part, max_length)
    return [piece.replace(_KEPT_DOT, ".") for piece in pieces]


def _with_kept_dots(text: str) -> str:
    """Dots within numbers and within abbreviations such as U.S. end no sentence."""
    text = re.sub(r"(?<=\d)\.(?=\d)", _KEPT_DOT, text)
    return re.sub(r"(?<=[A-Z])\.(?=[A-Z])", _KEPT_DOT, text)


def _sentences(text: str) -> Iterator[str]:
    """Sentences with their marks; a last one without gets one."""
    for sentence in re.findall(f"[^{_SENTENCE_ENDS}]*[{_SENTENCE_ENDS}]", text):
        yield sentence.strip()
    rest = re.split(f"[{_SENTENCE_ENDS}]", text)[-1].strip()
    if rest:
        yield rest + "。"


def _clauses(sentence: str) -> list[str]:
    """Clauses with their marks; one that is nothing but marks belongs to the one before."""
    clauses: list[str] = []
    for clause in re.findall(f"[^{_CLAUSE_ENDS}]*[{_CLAUSE_ENDS}]|[^{_CLAUSE_ENDS}]+$", sentence):
        clause = clause.strip()
        if _has_content(clause):
            clauses.append(clause)
        elif clauses:
            clauses[-1] += clause
    return clauses


def _joined(clauses: list[str], max_length: int) -> Iterator[str]:
    """A short clause and the next one, where they fit, as one."""
    rest = iter(clauses)
    waiting = next(rest, None)
    while waiting is not None:
        clause, waiting = waiting, next(rest, None)
        both = clause + (waiting or "")
        if waiting and _length(clause) < MIN_TAIL and _length(both) <= max_length:
            clause, waiting = both, next(rest, None)
        yield clause


def _hard_cut(clause: str, max_length: int) -> Iterator[str]:
    """Pieces of a clause, cut between characters or words where it is too long."""
    piece, length = "", 0
    for unit in _UNITS.findall(clause):
        unit_length = _length(unit)
        if length + unit_length > max_length:
            yield piece
            piece, length = "", 0
        piece, length = piece + unit, length + unit_length
    yield piece


def _append(pieces: list[str], part: str, max_length: int) -> None:
    """Add `part` to the last piece if it fits, unless that ends a sentence and `part` is short."""
    part = part.lstrip(_LEADING)
    if not _has_content(part):
        return
    length = _length(part)
    fits = bool(pieces) and _length(pieces[-1]) + length <= max_length
    if not fits or (length < MIN_TAIL and pieces[-1].endswith(tuple(_SENTENCE_ENDS))):
        pieces.append(part)
        return
    between = " " if not pieces[-1].endswith(" ") and re.match("[a-zA-Z0-9]", part) else ""
    pieces[-1] += between + part


def _length(text: str) -> int:
    """A dot within a number is said as a word."""
    return semantic_length(text) + text.count(_KEPT_DOT)


def _has_content(text: str) -> bool:
    return bool(text.strip(_BLANK))
