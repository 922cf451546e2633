"""What an uploaded voice may be called, and when two names are the same.

Knows characters. Knows no paths: nothing that is made of a name here is one.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from omni_core.errors import RequestError

MOST_CHARACTERS: Final = 64
_BESIDE_LETTERS: Final = frozenset(" _-.'")


def key_of(name: str) -> str:
    """Equal for names that are the same, however they are written."""
    return unicodedata.normalize("NFC", name).casefold()


def checked_name(asked: str, param: str) -> str:
    """The name as it will be shown; RequestError for one that cannot be."""
    name = unicodedata.normalize("NFC", asked.strip())
    kinds = [unicodedata.category(character)[0] for character in name]
    wrong = [
        character
        for character, kind in zip(name, kinds, strict=True)
        if kind not in "LMN" and character not in _BESIDE_LETTERS
    ]
    if wrong or not kinds or kinds[0] not in "LN" or len(name) > MOST_CHARACTERS:
        why = f"has {wrong[0]!r}" if wrong else "cannot be a name"
        raise RequestError(
            f"'{param}' {why}; a name begins with a letter or a digit, and goes on with these, "
            f"spaces and _ - . ', {MOST_CHARACTERS} characters at most.",
            param=param,
        )
    return name
