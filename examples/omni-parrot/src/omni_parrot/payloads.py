"""What the parrot's stages hand each other."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from omni_core.types import FinishReason, FloatArray


class Piece(TypedDict):
    """One part of what is to be repeated: a text, or else a sound."""

    text: NotRequired[str]
    sound: NotRequired[FloatArray]
    """(n,) at `HEARD_HZ`."""


class Turn(TypedDict):
    """preprocessing -> asr."""

    pieces: list[Piece]
    language: str | None
    """What is spoken, as an ISO 639-1 code."""
    prompt: str
    """Words to expect."""
    translate: bool
    """Write it down in English."""


class Said(TypedDict):
    """asr -> decode, asr -> segmenter: more of what is said again; one chunk ends it."""

    text: str
    finish: FinishReason | None
    """None while more may come."""
