"""Amounts of money and of units, percents: a number and what it is of, in words."""

from __future__ import annotations

import re
from typing import Final

from omni_ming.speech_text.spelling import NUMBER, Rule, number, rule, whole
from omni_ming.speech_text.units import PER, UNIT, longest_first, unit_words

_MONEY: Final = {
    "$": ("dollar", "dollars"),
    "£": ("pound", "pounds"),
    "€": ("euro", "euros"),
    "¥": ("yen", "yen"),
    "₹": ("rupee", "rupees"),
    "₩": ("won", "won"),
    "¢": ("cent", "cents"),
}
_SCALES: Final = {
    **dict.fromkeys(("k", "K"), "thousand"),
    **dict.fromkeys(("m", "M", "mn"), "million"),
    **dict.fromkeys(("b", "B", "bn"), "billion"),
    "tn": "trillion",
}
_SAID_SCALES: Final = "hundred|thousand|million|billion|trillion"
_ARTICLE: Final = r"(?P<article>\b[Aa]n? )?"
_WORD: Final = "(?P<word>(?= [a-z]))?"
_PER: Final = rf"(?:/(?P<per>{longest_first(PER)})(?!\w))?"
CURRENCY: Final = f"[{''.join(_MONEY)}]"


def _describes(match: re.Match[str]) -> bool:
    """Whether it stands between an article and the next word: a 5 km run, a $5 fee."""
    return match["article"] is not None and match["word"] is not None


def _said(match: re.Match[str], words: str, of: str) -> str:
    per = f"per {PER[match['per']]} " if match["per"] else ""
    return f"{match['article'] or ''} {words} {of} {per}"


def _amount(match: re.Match[str]) -> str:
    """$5, -$5, £-5, $5 million, $5k, $5/month."""
    scale = match["scale"]
    words = number(match["number"])
    if scale:
        words += " " + _SCALES.get(scale, scale.strip())
    if match["before"] or match["behind"]:
        words = "minus " + words
    one = (match["number"] == "1" and not scale) or _describes(match)
    return _said(match, words, _MONEY[match["currency"]][not one])


def _unit(match: re.Match[str]) -> str:
    one = match["number"] == "1" or match["joint"] == "-" or _describes(match)
    return _said(match, number(match["number"]), unit_words(match["unit"], one=one))


def _feet(match: re.Match[str]) -> str:
    feet, inches = match.groups()
    return (
        f" {whole(feet)} {'foot' if feet == '1' else 'feet'} "
        f"{whole(inches)} {'inch' if inches == '1' else 'inches'} "
    )


MONEY: Final[tuple[Rule, ...]] = (
    rule(
        rf"{_ARTICLE}(?P<before>(?<![\w)])[-−])?"
        # With a space it may belong to the number before it: 20 € 50 ¢.
        rf"(?P<currency>{CURRENCY}(?! )|(?<![0-9])(?<![0-9] ){CURRENCY}) ?(?P<behind>[-−])?"
        rf"(?P<number>{NUMBER})(?P<scale>(?:{longest_first(_SCALES)}| (?:{_SAID_SCALES}))\b)?"
        rf"{_PER}{_WORD}",
        _amount,
    ),
    rule(
        rf"{_ARTICLE}(?P<number>{NUMBER}) ?(?P<currency>[€¢])"
        rf"(?P<scale>)(?P<before>)(?P<behind>){_PER}{_WORD}",
        _amount,
    ),
)
UNITS: Final[tuple[Rule, ...]] = (
    rule(r"""\b([0-9]{1,2})['’′]([0-9]{1,2})(?:"|”|″)""", _feet),
    rule(
        rf"{_ARTICLE}\b(?P<number>{NUMBER})(?P<joint>[ -]?)(?P<unit>{UNIT}){_PER}"
        rf"(?!['’]?\w){_WORD}",
        _unit,
    ),
    rule(rf"({NUMBER}) ?%", lambda m: f" {number(m[1])} percent "),
    rule(rf"({NUMBER}) ?°", lambda m: f" {number(m[1])} degrees "),
)
