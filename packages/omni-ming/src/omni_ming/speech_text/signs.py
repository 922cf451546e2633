"""What stands between and before numbers: telephone numbers, fractions, ranges, arithmetic.

A hyphen is "minus" before a number and in arithmetic, "to" between two numbers, and nothing in a
chain such as 1-2-3 or 555-1234.
"""

from __future__ import annotations

import re
from typing import Final

from omni_ming.speech_text.amounts import CURRENCY
from omni_ming.speech_text.spelling import NUMBER, Rule, number, one_by_one, ordinal, rule, whole
from omni_ming.speech_text.units import UNIT

_SAID: Final = {"24/7": "twenty-four seven", "9/11": "nine eleven", "20/20": "twenty twenty"}
_LARGEST_PART: Final = 20
"""Above, and but for 100 and 1000, people say "over", not the part's name."""
_BEFORE: Final = {
    "<": "less than",
    ">": "greater than",
    "<=": "at most",
    "≤": "at most",
    ">=": "at least",
    "≥": "at least",
    "≈": "about",
    "~": "about",
    "±": "plus or minus",
}
_BETWEEN: Final = {
    "+": "plus",
    "-": "minus",
    "−": "minus",
    "*": "times",
    "×": "times",
    "x": "times",
    "/": "divided by",
    "÷": "divided by",
}
_MINUS: Final = "[-−]"


def _chain(match: re.Match[str]) -> str:
    """Groups of digits: short ones are numbers, long ones are read digit by digit."""
    groups = re.findall("[0-9]+", match[0])
    said = [one_by_one(one) if len(one) > 2 or one[0] == "0" else whole(one) for one in groups]
    plus = "plus " if "+" in match[0] else ""
    return f" {plus}{', '.join(said)}"


def _international(match: re.Match[str]) -> str:
    return _chain(match) if sum(map(str.isdigit, match[0])) >= 7 else match[0]


def _local(match: re.Match[str]) -> str:
    """555-1234; but 500-1000 is a range."""
    call = match["call"] or ""
    is_range = not call and re.fullmatch("[0-9]+0-[0-9]+0", match[0])
    return match[0] if is_range else call + _chain(match)


def _fraction(match: re.Match[str]) -> str:
    top, bottom = match["top"], match["bottom"]
    if match[0] in _SAID:
        return f" {_SAID[match[0]]} "
    before = f"{number(match['whole'])} and " if match["whole"] else ""
    return f" {before}{_parts(top, bottom)} "


def _parts(top: str, bottom: str) -> str:
    several = "s" if int(top) != 1 else ""
    match bottom:
        case "2":
            return f"{whole(top)} {'halves' if several else 'half'}"
        case "4":
            return f"{whole(top)} quarter{several}"
        case _ if top == bottom:
            return f"{whole(top)} out of {whole(bottom)}"
        case _ if bottom in ("100", "1000") or 2 < int(bottom) <= _LARGEST_PART:
            return f"{whole(top)} {ordinal(bottom)}{several}"
        case _:
            return f"{whole(top)} over {whole(bottom)}"


def _between(match: re.Match[str]) -> str:
    return f" {_BETWEEN[match[1]]} "


GROUPS: Final[tuple[Rule, ...]] = (
    rule(r"\b0[xX](?=[0-9a-fA-F])", "zero x "),
    rule(r"(?<![\w+])\+[0-9]{1,3}(?:[ .-]?\([0-9]{1,5}\))?(?:[ .-][0-9]{2,}+)++", _international),
    rule(r"(?<![\w-])\([0-9]{3}\) ?[0-9]{3}[ .-][0-9]{4}(?![\w-])", _chain),
    rule(r"(?<![\w.-])[0-9]++(?:-[0-9]++){2,}+(?![\w-])", _chain),
    rule(
        r"(?P<call>\b(?:[Cc]all|[Dd]ial|[Pp]hone|[Tt]ext) )?"
        r"(?<![\w.-])[0-9]{3}-[0-9]{4}(?![\w-]|\.[0-9])",
        _local,
    ),
    rule(
        r"\b([Cc]all|[Dd]ial|[Tt]ext) (112|911|988|999)\b",
        lambda m: f"{m[1]} {one_by_one(m[2])}",
    ),
    rule(
        r"(?<![0-9.])[0-9]++(?:\.[0-9]++){2,}+",
        lambda m: f" {' point '.join(map(whole, m[0].split('.')))} ",
    ),
    rule(
        r"(?:(?<![\w.,])(?P<whole>[0-9]{1,9}) )?"
        r"(?<![\w./])(?P<top>[0-9]{1,9})/(?P<bottom>[0-9]{1,9})(?![0-9/]|\.[0-9])",
        _fraction,
    ),
    rule(r"(?<![\w./])([0-9]++\.[0-9]++)/(?=[0-9])", lambda m: f"{m[1]} out of "),
)
"""Numbers of several numbers, said as one."""

RANGES: Final[tuple[Rule, ...]] = (
    rule(
        rf"({CURRENCY})({NUMBER}) ?[-–] ?(?:{CURRENCY})?(?=[0-9])",
        lambda m: f"{m[2]} to {m[1]}",
    ),
    rule(rf"\b({NUMBER} ?(?:%|°|{UNIT}|[AP]M))(?: ?–|-| -) ?(?=[0-9])", lambda m: f"{m[1]} to "),
    rule(rf"\b({NUMBER} ?{UNIT}) ?[x×] ?(?=[0-9])", lambda m: f"{m[1]} by "),
    rule(rf"(?<![\w-])({NUMBER})-({NUMBER})(?= ?=)", lambda m: f"{m[1]} minus {m[2]}"),
    rule(rf"(?<![\w-])({NUMBER})-(?=[0-9])", lambda m: f"{m[1]} to "),
    rule(r"(?<=[0-9]) ?–(?: |(?=[0-9]))(?=[-−]?[0-9])", " to "),
)
"""They leave the numbers."""

SIGNS: Final[tuple[Rule, ...]] = (
    rule(
        rf"\b({NUMBER})[eE]([-+]?)([0-9]{{1,3}})\b",
        lambda m: f"{m[1]} times 10 to the power of {'minus ' if m[2] == '-' else ''}{m[3]}",
    ),
    rule(r"(?<=[\w)])\^(?=[-−]?[0-9])", " to the power of "),
    rule(r"(?<![-=<>\w])([<>]=|[<>≤≥≈~±]) ?(?=[-−]?[0-9])", lambda m: f" {_BEFORE[m[1]]} "),
    rule(r"(?<=[0-9])[x×](?=[0-9])", " by "),
    rule(r"(?<=[0-9)]) ?([+*×÷−]) ?(?=[-−]?[0-9(])", _between),
    rule(r"(?<=[a-zA-Z]) \+ (?=[0-9(])", " plus "),
    rule(r"\b([0-9]*+[nxyz]) - (?=[0-9(])", lambda m: f"{m[1]} minus "),
    rule(r"(?<=[0-9)]) ([-x/]) (?=[-−]?[0-9(])", _between),
    rule(r"(?<=[\w)]) ?= ?(?=[-−(]?[0-9])|(?<=[0-9)]) ?= ?(?=\w)", " equals "),
    rule(r"(?<!\S)\+(?=[0-9])", "plus "),
    rule(r"(?<=[0-9])\+(?![\w+])", " plus"),
    rule(rf"(?<![\w)\]'.-]){_MINUS}(?=[0-9])|−(?=[0-9])", "minus "),
    rule(rf"(?<=\)){_MINUS}(?=[0-9])", " minus "),
    rule(r"(?<![\w&#])#(?=[0-9])", "number "),
)
"""Arithmetic: signs in words, numbers as they were."""
