"""Which field makes a body no JSON: numbers that are none, half characters, brackets without end.

Knows what Python's json reads and JSON forbids, and that JSON may be too deep to read. Knows no
endpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MOST_SEARCHED_BYTES = 64 * 1024
"""Of a body that is no JSON; finding the field at fault in a larger one would hold up others."""
MAX_DEPTH = 100
"""Brackets within each other that everything which reads JSON can follow."""
_SUSPECT = re.compile(rb"[:\[,]\s*-?(?:NaN|Infinity)\s*[,\]}]|\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*+)"?\s*(:?)|[\[{]|[\]}]', re.DOTALL)
"""A string that is cut off is one to the end, so that no other place is tried in it."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A field and what is wrong with it."""

    path: str
    problem: str


def find_culprit(body: bytes | bytearray) -> Culprit | None:
    """The first field of a body that is JSON but for its values; None if it is not, or large."""
    if len(body) > MOST_SEARCHED_BYTES or not _SUSPECT.search(body):
        return None
    try:
        return _below(json.loads(body.decode("utf-8", "surrogatepass")))
    except (ValueError, RecursionError):
        return None


def find_deep(body: bytes | bytearray) -> Culprit | None:
    """The top-level field of a body that is nested too deep to read, if its start shows which."""
    name, depth = b"", 0
    for token in _TOKEN.finditer(body, 0, MOST_SEARCHED_BYTES):
        text = token[0]
        if text[:1] == b'"':
            name = token[1] if depth == 1 and token[2] else name
            continue
        depth += 1 if text in (b"[", b"{") else -1
        if depth > MAX_DEPTH:
            return Culprit(name.decode(errors="replace"), "nested too deep") if name else None
    return None


def _below(value: Any) -> Culprit | None:
    if isinstance(value, float):
        found = not math.isfinite(value)
        return Culprit("", "NaN and Infinity are no numbers of JSON") if found else None
    if isinstance(value, str):
        found = _SURROGATE.search(value) is not None
        return Culprit("", "half of a surrogate pair is no character") if found else None
    for step, item in _steps(value):
        if in_name := _below(step):
            return in_name
        if below := _below(item):
            return Culprit(join(step, below.path), below.problem)
    return None


def _steps(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    return ()


def join(prefix: str, below: str) -> str:
    """The path of a field below another."""
    separator = "" if not prefix or not below or below.startswith("[") else "."
    return f"{prefix}{separator}{below}"
