"""The settings an operator may change: their types, how text becomes them, and what they mean.

One table for the YAML file, the command line and the documentation. How stages connect is not in
here: that belongs to plugins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeAlias

from omni_core.engine.base import ENGINES

Reader: TypeAlias = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting."""

    meaning: str
    expected: str
    """What a value must be, to be read after "expected"."""
    read: Reader
    """Text of the command line to what YAML would give; ValueError if it is nothing of the kind."""
    store: Callable[[object], Any]
    """What YAML gives to what is stored; ValueError if the type is wrong."""

    def from_text(self, text: str) -> Any:
        """A value as written on a command line; ValueError if it is not as `expected`."""
        return self.store(self.read(text))


def text(meaning: str, *, optional: bool = False) -> Field:
    """A string; "none" on the command line is null where that is allowed."""

    def read(word: str) -> object:
        return None if optional and word.lower() == "none" else word

    def store(value: object) -> str | None:
        if isinstance(value, str) or (optional and value is None):
            return value
        raise ValueError

    expected = "text or null" if optional else "text"
    return Field(meaning=meaning, expected=expected, read=read, store=store)


def choice(meaning: str, *choices: str, optional: bool = False) -> Field:
    """One of a few words; "none" on the command line is null where that is allowed."""

    def read(word: str) -> object:
        return None if optional and word.lower() == "none" else word

    def store(value: object) -> str | None:
        if optional and value is None:
            return None
        if isinstance(value, bool):
            value = "on" if value else "off"  # as YAML reads those words, unless they are quoted
        if value in choices and isinstance(value, str):
            return value
        raise ValueError

    words = (*choices, "null") if optional else choices
    expected = f"{', '.join(words[:-1])} or {words[-1]}"
    return Field(meaning=meaning, expected=expected, read=read, store=store)


def words(meaning: str, pattern: re.Pattern[str]) -> Field:
    """A list of words that the pattern matches, or null; with commas on the command line."""

    def store(value: object) -> list[str] | None:
        if value is None:
            return None
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list):
            raise ValueError
        split = [word.strip() for item in found for word in str(item).split(",")]
        if not all(map(pattern.fullmatch, split)):
            raise ValueError
        return split

    return Field(meaning=meaning, expected=f"a list of {meaning}, or null", read=str, store=store)


def whole(
    meaning: str, *, least: int | None = None, most: int | None = None, optional: bool = False
) -> Field:
    """A whole number within bounds."""

    def read(word: str) -> object:
        return None if optional and word.lower() == "none" else int(word)

    def store(value: object) -> int | None:
        if optional and value is None:
            return None
        if type(value) is not int or not _within(value, least, most):
            raise ValueError
        return value

    expected = "a whole number" + _bounds(least, most) + (" or null" if optional else "")
    return Field(meaning=meaning, expected=expected, read=read, store=store)


def number(meaning: str, *, least: float | None = None, optional: bool = False) -> Field:
    """A finite number."""

    def read(word: str) -> object:
        return None if optional and word.lower() == "none" else float(word)

    def store(value: object) -> float | None:
        if optional and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not isfinite(value) or not _within(value, least, None):
            raise ValueError
        return float(value)

    expected = "a number" + _bounds(least, None) + (" or null" if optional else "")
    return Field(meaning=meaning, expected=expected, read=read, store=store)


def cards(meaning: str) -> Field:
    """A CUDA card, several, or none; "0,1" on the command line."""

    def read(word: str) -> object:
        if word.lower() in _NO_CARD:
            return None
        numbers = [int(card) for card in word.split(",")]
        return numbers[0] if len(numbers) == 1 else numbers

    def store(value: object) -> int | tuple[int, ...] | None:
        if value is None or (isinstance(value, str) and value.lower() in _NO_CARD):
            return None
        if type(value) is int:
            return value
        if isinstance(value, list | tuple) and value and all(type(card) is int for card in value):
            return value[0] if len(value) == 1 else tuple(value)
        raise ValueError

    expected = "a card's number, a list of them, or null for the CPU"
    return Field(meaning=meaning, expected=expected, read=read, store=store)


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least:g}" if most is None else f" from {least:g} to {most:g}"


_NO_CARD: Final = frozenset({"none", "cpu"})

STAGE_FIELDS: Final[Mapping[str, Field]] = {
    "process": text(
        "stages that name the same process share one; null gives the stage its own", optional=True
    ),
    "gpu": cards("the card the stage computes on"),
    "memory_fraction": number(
        "share of the card's total memory the stage may hold, above 0 and at most 1", optional=True
    ),
    "tp_size": whole("cards one model is split over (tensor parallelism), where the engine can"),
    "replicas": whole("processes of this kind; a request meets the one with least to do"),
    "max_batch": whole("requests a batching stage computes at once"),
    "max_wait_ms": number("how long a batching stage waits for its batch to fill, milliseconds"),
    "max_concurrency": whole("requests a stateless stage works on at once, each in a thread"),
    "ar_engine": choice(
        "engine of this autoregressive stage; null is that of the pipeline", *ENGINES, optional=True
    ),
}
"""Fields of `StageConfig` besides `env` and `options`. Their ranges are checked with the graph,
which checks the plugin's own values as well."""

PIPELINE_FIELDS: Final[Mapping[str, Field]] = {
    "variant": text("which of the pipeline's graphs to run"),
    "device": text("auto, cpu or cuda; auto is cuda where a card is visible"),
    "dtype": choice(
        "type of weights and activations; auto is bfloat16 on a card, float32 on a CPU",
        "auto",
        "float32",
        "bfloat16",
        "float16",
    ),
    "layout": choice(
        "auto groups the stages into few processes on a CPU; per-stage gives each its own",
        "auto",
        "per-stage",
    ),
    "ar_engine": choice(
        "engine of the autoregressive stages; auto is sglang on CUDA where it is installed and the "
        "stage can be driven by it, else torch",
        "auto",
        *ENGINES,
    ),
    "compile": choice(
        "whether hot steps are replaced by compiled ones (CPU) or CUDA graphs: never, while "
        "requests are served, or before the first one",
        "off",
        "background",
        "wait",
    ),
}
"""Settings of a whole pipeline, at the top of the file and `--name` on the command line."""


def env_value(value: object) -> str:
    """The value of an environment variable; ValueError unless it is text or a whole number."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    raise ValueError("text; put it in quotes")
