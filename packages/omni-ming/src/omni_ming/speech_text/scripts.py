"""What kind of text something is, and how long, as the Talker's front end counts."""

from __future__ import annotations

import re

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_UNITS = re.compile(r"[\u4e00-\u9fa5]|[a-zA-Z]+")


def is_chinese(text: str) -> bool:
    """Whether any of its characters is."""
    return _CHINESE.search(text) is not None


def semantic_length(text: str) -> int:
    """Chinese characters and runs of Latin letters; digits and marks count as nothing."""
    return len(_UNITS.findall(text))


def is_speakable(text: str) -> bool:
    """Whether there is anything to say: a letter of any script, or a digit."""
    return any(character.isalnum() for character in text)
