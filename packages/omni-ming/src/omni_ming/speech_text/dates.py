"""Dates, years, decades and times of day in words.

Where only the order could tell day from month, the month comes first, as in American English; so
do the words of `inflect`.
"""

from __future__ import annotations

import re
from typing import Final

from omni_ming.speech_text.spelling import Rule, ordinal, plural, rule, two_digits, whole, year

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_SHORT: Final = {name[:3]: name for name in _MONTHS} | {"Sept": "September"}
_MONTH: Final = rf"({'|'.join((*_MONTHS, *_SHORT))})\b\.?"
_DAY: Final = r"(0?[1-9]|[12][0-9]|3[01])(?:st|nd|rd|th)?"
_COMMA: Final = "(?: |[,，] ?)"
"""In a text that was cut, commas are full-width."""
_YEAR: Final = r"(1[1-9][0-9]{2}|20[0-9]{2})"
_END: Final = r"(?![\w%]| ?%|[.,:/-][0-9])"
"""The number is over, and is no part of another."""
_DATE_END: Final = r"(?![\w/-]|\.[0-9])"
_YEAR_FOLLOWS: Final = (
    "in|since|from|between|by|until|till|before|after|during|around|circa|year|Q[1-4]|"
    "(?:spring|summer|autumn|fall|winter|class)(?: of)?"
)


def _month_day_year(month: str, day: str, written_year: str) -> str:
    said = year(written_year) if len(written_year) == 4 else two_digits(written_year)
    return f" {_MONTHS[int(month) - 1]} {ordinal(day)}, {said}"


def _slashes(match: re.Match[str]) -> str:
    first, second = match[1], match[2]
    month, day = (first, second) if int(first) <= 12 else (second, first)
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return match[0]
    return _month_day_year(month, day, match[3])


def _full(month: str) -> str:
    return _SHORT.get(month, month)


def _named(match: re.Match[str]) -> str:
    """May 5, May 5th, May 5-7, each perhaps with a year."""
    until = f" to {ordinal(match[3])}" if match[3] else ""
    of_year = f", {year(match[4])}" if match[4] else ""
    return f"{_full(match[1])} {ordinal(match[2])}{until}{of_year}"


def _decade(match: re.Match[str]) -> str:
    """1990s, 1900s, 2000s."""
    return f" {plural(year(match[1]))}"


def _time(match: re.Match[str]) -> str:
    hour, minutes, seconds, half = match.groups()
    said = whole(hour)
    if minutes != "00" or seconds not in (None, "00"):
        said += f" : {two_digits(minutes)}"
        said += f" : {two_digits(seconds)}" if seconds not in (None, "00") else ""
    elif not half:
        # Neither midnight nor a time in a recording has a word that is right for both.
        full = "o'clock" if 1 <= int(hour) <= 12 else "hundred" if 13 <= int(hour) <= 23 else ""
        said += f" {full}" if full else " : zero zero"
    return f" {said} {half.upper()}M" if half else f" {said}"


DATES: Final[tuple[Rule, ...]] = (
    rule(
        rf"(?<![\w/-]){_YEAR}([-/])(0?[1-9]|1[0-2])\2(0?[1-9]|[12][0-9]|3[01])"
        r"(?:(T)(?=[0-9])|(?![\w/-]|\.[0-9]))",
        lambda m: _month_day_year(m[3], m[4], m[1]) + (" " if m[5] else ""),
    ),
    rule(
        rf"(?<![\w/.-]){_YEAR}-0([1-9]){_DATE_END}",
        lambda m: f" {_MONTHS[int(m[2]) - 1]} {year(m[1])}",
    ),
    rule(rf"(?<![\w/.-])([0-9]{{1,2}})/([0-9]{{1,2}})/({_YEAR}|[0-9]{{2}}){_DATE_END}", _slashes),
    rule(
        rf"(?<![\w/.-])(0?[1-9]|[12][0-9]|3[01])\.(0?[1-9]|1[0-2])\.{_YEAR}{_DATE_END}",
        lambda m: _month_day_year(m[2], m[1], m[3]),
    ),
    rule(
        rf"\b(?:the )?{_DAY} (?:of )?{_MONTH}{_COMMA}{_YEAR}{_END}",
        lambda m: f"the {ordinal(m[1])} of {_full(m[2])} {year(m[3])}",
    ),
    rule(rf"\b{_MONTH} {_DAY}(?:[-–]{_DAY})?(?:{_COMMA}{_YEAR})?{_END}", _named),
    rule(rf"\b{_MONTH}{_COMMA}{_YEAR}{_END}", lambda m: f"{_full(m[1])} {year(m[2])}"),
    rule(r"\b((?:1[1-9]|20)[0-9]0)['’]?s\b", _decade),
    rule(
        r"(?:['’]|\b(?:([Tt]he|his|her|their|my|your|our|[Ee]arly|[Mm]id|[Ll]ate)[ -]))"
        r"([2-9]0)['’]?s\b",
        lambda m: f"{m[1] or ''} {plural(whole(m[2]))}",
    ),
    rule(
        rf"(?<![\w.,/-]){_YEAR}(?: ?–|-| - ){_YEAR}(?![\w-])",
        lambda m: f" {year(m[1])} to {year(m[2])}",
    ),
    rule(
        rf"(?<![\w.,/-]){_YEAR}([-–/])([0-9]{{2}}){_DATE_END}",
        lambda m: f" {year(m[1])} {'' if m[2] == '/' else 'to '}{two_digits(m[3])}",
    ),
    rule(r"(:[0-5][0-9](?: ?[apAP][mM])?)(?: ?–|-| - ) ?(?=[0-9])", lambda m: f"{m[1]} to "),
    rule(
        r"(?<![\w:.])([0-9]{1,2}):([0-5][0-9])(?::([0-5][0-9]))?(?: ?([apAP])[mM]|Z)?(?![\w:])",
        _time,
    ),
    rule(r"(?<![\w:.])([0-9]++):([0-9]++)(?![\w:])", lambda m: f"{m[1]} to {m[2]}"),
    rule(r"(?<=[0-9]) ?([apAP])[mM]\b", lambda m: f" {m[1].upper()}M"),
)
"""They come first: each of these looks like something else to the rules for signs."""

YEARS: Final[tuple[Rule, ...]] = (
    rule(
        rf"\b((?:{_YEAR_FOLLOWS}) ){_YEAR}(?:( (?:to|and|or|until|through) ){_YEAR})?{_END}",
        lambda m: m[1] + year(m[2]) + (m[3] + year(m[4]) if m[4] else ""),
    ),
    rule(rf"\({_YEAR}\)", lambda m: f"({year(m[1])})"),
)
"""Years by what stands before them; they come when units have taken their numbers."""
