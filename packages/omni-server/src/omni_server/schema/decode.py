"""Bytes to request types, and what is wrong with them in OpenAI's terms.

Knows msgspec's messages. Knows no endpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from omni_core.errors import RequestError

T = TypeVar("T")

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_CONSTANT = re.compile(rb"[:\[,]\s*-?(?:NaN|Infinity)\s*[,\]}]")
"""How many clients write numbers that are none, which Python's json reads and JSON forbids."""
_MOST_SEARCHED_BYTES = 1024 * 1024
"""Of a body that is no JSON; finding the field at fault in a larger one would hold up others."""
_SHORT_BYTES = 64
_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_NAME = re.compile(r"\b(str|int|float|bool)\b")


def decode_body(
    body: bytes | bytearray, kind: type[T], hints: Mapping[str, str] | None = None
) -> T:
    """Parse a JSON body; a RequestError names the field at fault.

    `hints` maps the last name of a path to what may stand there, for msgspec's terser messages.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise invalid_field(exc, "", hints) from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        path = _not_a_number(body) if len(body) <= _MOST_SEARCHED_BYTES else None
        if path is not None:
            raise RequestError(
                f"Invalid value for '{path}': NaN and Infinity are no numbers of JSON.", param=path
            ) from exc
        raise RequestError(
            f"The request body is not valid JSON: {exc}.", code="invalid_json"
        ) from exc


def convert_field(value: Any, kind: type[T], path: str) -> T:
    """Check an already parsed value that stands at `path` of the body."""
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as exc:
        raise invalid_field(exc, path, None) from exc


def convert_form(
    fields: Iterable[tuple[str, str]],
    kind: type[T],
    *,
    lists: Collection[str] = (),
    objects: Collection[str] = (),
    hints: Mapping[str, str] | None = None,
) -> T:
    """Check the (name, value) pairs of a form, whose numbers and booleans are words.

    An empty value equals an absent one. `lists` are written `name[]` or `name`, once an item;
    `objects` are written `name[key]`, or as JSON in one value. Any other name may be there once.
    """
    values = _form_values(fields, lists, objects)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise invalid_field(exc, "", hints) from exc


def _form_values(
    fields: Iterable[tuple[str, str]], lists: Collection[str], objects: Collection[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for written, value in fields:
        name, bracket, key = written.removesuffix("]").partition("[")
        if not value:
            continue
        if name in lists and not key:
            values.setdefault(name, []).append(value)
            continue
        if name in objects and bracket and isinstance(values.setdefault(name, {}), dict):
            within, name = values[name], key
        else:
            within, name = values, written
        if name in within:
            raise RequestError(f"'{written}' is there twice; send one value.", param=written)
        is_json = name in objects and value.lstrip().startswith("{")
        within[name] = decode_json(value, name) if is_json else value
    return values


def short_value(value: Any, path: str) -> Any:
    """What a field at `path` says that is only compared. Long JSON that was left unread equals
    nothing and stays so; what was read is given back."""
    unread = isinstance(value, msgspec.Raw) and len(memoryview(value)) <= _SHORT_BYTES
    return decode_json(value, path) if unread else value


def decode_json(text: str | msgspec.Raw, path: str) -> Any:
    """Parse JSON that stands in a field at `path`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise RequestError(
            f"'{path}' is not valid JSON: {exc}.", param=path, code="invalid_json"
        ) from exc


def invalid_field(
    error: msgspec.ValidationError, prefix: str, hints: Mapping[str, str] | None
) -> RequestError:
    """OpenAI's wording of one validation error found below `prefix`."""
    found = _WHERE.match(str(error))
    problem, below = (found["problem"], found["path"] or "") if found else (str(error), "")
    missing = _MISSING.match(problem)
    if missing:
        param = _join(_join(prefix, below), missing["field"])
        return RequestError(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    param = _join(prefix, below)
    problem = _NAME.sub(lambda name: _JSON_NAMES[name[0]], problem.replace("`", ""))
    hint = (hints or {}).get(param.rpartition(".")[2], "")
    expected = f"; {hint}" if hint else ""
    where = f"Invalid value for '{param}'" if param else "Invalid request body"
    return RequestError(
        f"{where}: {problem[:1].lower()}{problem[1:]}{expected}.", param=param or None
    )


def _not_a_number(body: bytes | bytearray) -> str | None:
    """Path of the first NaN or Infinity in a body that is JSON otherwise."""
    if not _CONSTANT.search(body):
        return None
    try:
        return _path_to_constant(json.loads(body))
    except (ValueError, RecursionError):
        return None


def _path_to_constant(value: Any) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    steps: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        steps = value.items()
    elif isinstance(value, list):
        steps = ((f"[{index}]", item) for index, item in enumerate(value))
    for step, item in steps:
        below = _path_to_constant(item)
        if below is not None:
            return _join(step, below)
    return None


def _join(prefix: str, below: str) -> str:
    separator = "" if not prefix or not below or below.startswith("[") else "."
    return f"{prefix}{separator}{below}"
