"""Numbers, amounts and units in English text as words.

What the authors' rules read well is written as they write it, which is what the model was trained
on: the colon of a time, decimals one by one, ordinals as cardinals. What they read wrongly (dates,
years, ranges, signs, units that are words) is read as a person would. A digit that clings to
letters, as in B2B, is a number of its own. Chinese text keeps its digits: the model reads them.
"""

from __future__ import annotations

import re
from typing import Final

from omni_ming.speech_text.amounts import MONEY, UNITS
from omni_ming.speech_text.dates import DATES, YEARS
from omni_ming.speech_text.scripts import is_chinese
from omni_ming.speech_text.signs import GROUPS, RANGES, SIGNS
from omni_ming.speech_text.spelling import NUMBER, Rule, apply, number, rule, whole

_ONE_CHARACTER: Final = str.maketrans(
    {"½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3", "µ": "μ"}
)

_THOUSANDS: Final = re.compile(
    r"(?<![0-9,])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3})(?![0-9,])"
)
_PLAIN: Final[tuple[Rule, ...]] = (rule(r"(?<![\w.)])\.(?=[0-9])", "0."),)
_REST: Final[tuple[Rule, ...]] = (
    rule(r"(?<=[\w)])²", " squared"),
    rule(r"(?<=[\w)])³", " cubed"),
    rule(r"\b([0-9]+)(?:st|nd|rd|th)\b", lambda m: f" {whole(m[1])} "),
    rule(rf"\b([a-zA-Z]+)-?({NUMBER})\b", lambda m: f"{m[1]} {number(m[2])}"),
    rule(rf"-?({NUMBER})(?:-(?=[a-zA-Z]))?", lambda m: f" {number(m[1])} "),
)
_RULES: Final = (*_PLAIN, *DATES, *GROUPS, *RANGES, *MONEY, *SIGNS, *UNITS, *YEARS, *_REST)
"""In order: each sees what the ones before have left."""


def write_numbers(text: str) -> str:
    """`text` with all its numbers in words and its white space made single."""
    text = " ".join(text.split())
    if is_chinese(text) or not any(map(str.isnumeric, text)):
        return text
    text = without_grouping(text.translate(_ONE_CHARACTER))
    return " ".join(apply(_RULES, text).split())


def without_grouping(text: str) -> str:
    """Numbers without the commas that group their digits, which separate nothing: 1,234."""
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
