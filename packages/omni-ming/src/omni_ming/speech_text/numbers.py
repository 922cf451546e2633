"""Numbers, amounts and units in English text as words, as the Talker's front end writes them.

Chinese text keeps its digits: the model reads them itself. Spelling out is `inflect`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final

import inflect

_UNITS: Final = {
    "ms": "milliseconds",
    "s": "seconds",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "kb": "kilobytes",
    "mb": "megabytes",
    "gb": "gigabytes",
    "tb": "terabytes",
    "bps": "bits per second",
    "kbps": "kilobits per second",
    "mbps": "megabits per second",
    "gbps": "gigabits per second",
    "cm": "centimeters",
    "km": "kilometers",
    "kg": "kilograms",
    "v": "volts",
    "a": "amperes",
    "w": "watts",
    "°c": "degrees celsius",
    "°f": "degrees fahrenheit",
}
_LONGEST_DIGITS: Final = 33
"""There are no words for more; a longer run of digits is read one by one."""


def write_numbers(text: str) -> str:
    """`text` with all its numbers in words and its white space made single."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return " ".join(text.split())


@cache
def _engine() -> inflect.engine:
    return inflect.engine()


def _whole(digits: str) -> str:
    if len(digits) > _LONGEST_DIGITS:
        return _one_by_one(digits)
    return str(_engine().number_to_words(str(int(digits)), andword=""))


def _one_by_one(digits: str) -> str:
    words = {digit: _whole(digit) for digit in set(digits)}
    return " ".join(words[digit] for digit in digits)


def _number(written: str) -> str:
    """Of an optional sign, digits and perhaps decimals, which are said one by one."""
    sign = "minus " if written.startswith("-") else ""
    whole, dot, decimals = written.lstrip("-").partition(".")
    words = _whole(whole or "0")
    return f"{sign}{words} point {_one_by_one(decimals)}" if dot else sign + words


def _amount(unit: str) -> Callable[[re.Match[str]], str]:
    def words(match: re.Match[str]) -> str:
        one = re.fullmatch(r"-?0*1(\.0*)?", match[1])
        return f" {_number(match[1])} {unit if one else unit + 's'} "

    return words


def _fraction(match: re.Match[str]) -> str:
    top, bottom = match[1], match[2]
    plural = "" if int(top) == 1 else "s"
    match bottom:
        case "2":
            part = "half" if not plural else "halves"
        case "4":
            part = "quarter" + plural
        case _:
            part = str(_engine().ordinal(_whole(bottom))) + plural
    return f" {_whole(top)} {part} "


_SIGNED: Final = r"-?(?<![0-9])[0-9]+(?:\.[0-9]+)?"
_RULES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (
        re.compile(
            r"(?<![0-9,])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3})(?![0-9,])"
        ),
        lambda m: m[0].replace(",", ""),
    ),
    (
        re.compile(rf"\b({_SIGNED})\s*({'|'.join(_UNITS)})\b", re.IGNORECASE | re.ASCII),
        lambda m: f" {_number(m[1])} {_UNITS[m[2].lower()]} ",
    ),
    (re.compile(rf"£({_SIGNED})"), _amount("pound")),
    (re.compile(rf"\$({_SIGNED})"), _amount("dollar")),
    (re.compile(r"([0-9]{1,9})/([0-9]{1,9})"), _fraction),
    (re.compile(rf"({_SIGNED})%"), lambda m: f" {_number(m[1])} percent "),
    (re.compile(r"\b([0-9]+)(?:st|nd|rd|th)\b"), lambda m: f" {_whole(m[1])} "),
    (
        re.compile(r"\b([a-zA-Z]+)-?([0-9]+(?:\.[0-9]+)?)\b"),
        lambda m: f"{m[1]} {_number(m[2])}",
    ),
    (re.compile(rf"\b{_SIGNED}\b"), lambda m: f" {_number(m[0])} "),
)
"""In order: each sees what the ones before have left."""
