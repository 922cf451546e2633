"""Numbers of digits as English words: whole, one by one, with decimals, ordinal, as a year.

Spelling out is `inflect`'s. Knows nothing of the text around a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final, TypeAlias

import inflect

Rule: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
"""What to look for and what to write instead. A pattern is searched for in a text of any length
and must take time in proportion: what can start anywhere must end soon, or give nothing back
(`++`)."""

NUMBER: Final = r"(?<![0-9])[0-9]++(?:\.[0-9]++)?"
"""Without a sign, from its first digit on; a pattern without groups."""
_LONGEST_DIGITS: Final = 33
"""There are no words for more; a longer run of digits is read one by one."""


def rule(pattern: str, words: Callable[[re.Match[str]], str] | str) -> Rule:
    """A `Rule`; `words` may be one text for all matches."""
    if isinstance(words, str):
        said = words
        return re.compile(pattern), lambda match: said
    return re.compile(pattern), words


def apply(rules: tuple[Rule, ...], text: str) -> str:
    """`text` after all rules, in order: each sees what the ones before have left."""
    for pattern, words in rules:
        text = pattern.sub(words, text)
    return text


@cache
def _engine() -> inflect.engine:
    return inflect.engine()


@lru_cache(maxsize=4096)
def whole(digits: str) -> str:
    """One number, whatever its leading zeros."""
    if len(digits) > _LONGEST_DIGITS:
        return one_by_one(digits)
    return str(_engine().number_to_words(str(int(digits)), andword=""))


def one_by_one(digits: str) -> str:
    """Each digit alone."""
    return " ".join(whole(digit) for digit in digits)


def number(written: str) -> str:
    """Of digits and perhaps decimals, which are said one by one, as is what begins with a zero."""
    digits, dot, decimals = written.partition(".")
    words = one_by_one(digits) if digits[0] == "0" else whole(digits)
    return f"{words} point {one_by_one(decimals)}" if dot else words


@lru_cache(maxsize=256)
def ordinal(digits: str) -> str:
    """Third, twenty-first, one hundredth."""
    return str(_engine().ordinal(whole(digits)))


def plural(words: str) -> str:
    """Of a number in words: nineties."""
    return words.removesuffix("y") + "ies" if words.endswith("y") else _with_s(words)


def _with_s(words: str) -> str:
    return words + ("es" if words.endswith("x") else "s")


def two_digits(digits: str) -> str:
    """As in times and years: oh five, thirty."""
    if digits == "00":
        return "zero zero"
    return f"oh {whole(digits[1])}" if digits[0] == "0" else whole(digits)


def year(digits: str) -> str:
    """Of four digits, from 1000 on: nineteen oh five, twenty twenty-six, two thousand nine."""
    century, rest = digits[:2], digits[2:]
    if digits[1:3] == "00":
        return whole(digits)
    return f"{whole(century)} {'hundred' if rest == '00' else two_digits(rest)}"
