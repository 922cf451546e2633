"""Bytes to request types, and what is wrong with them in OpenAI's terms.

Knows msgspec's messages. Knows no endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from omni_core.errors import RequestError
from omni_server.schema.culprit import MAX_DEPTH, Culprit, find_culprit, find_deep, join

T = TypeVar("T")

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
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
    except msgspec.DecodeError as exc:
        raise _no_json(find_culprit(body), exc) from exc
    except RecursionError as exc:
        raise _no_json(find_deep(body), exc) from exc


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


def require_shallow(value: Any, path: str) -> None:
    """RequestError for JSON at `path` that is nested deeper than its next readers can follow."""
    if _is_deeper(value, MAX_DEPTH):
        raise RequestError(f"'{path}' is nested more than {MAX_DEPTH} deep.", param=path)


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    within = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in within)


def invalid_field(
    error: msgspec.ValidationError, prefix: str, hints: Mapping[str, str] | None
) -> RequestError:
    """OpenAI's wording of one validation error found below `prefix`."""
    found = _WHERE.match(str(error))
    problem, below = (found["problem"], found["path"] or "") if found else (str(error), "")
    missing = _MISSING.match(problem)
    if missing:
        param = join(join(prefix, below), missing["field"])
        return RequestError(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    param = join(prefix, below)
    problem = _NAME.sub(lambda name: _JSON_NAMES[name[0]], problem.replace("`", ""))
    hint = (hints or {}).get(param.rpartition(".")[2], "")
    expected = f"; {hint}" if hint else ""
    where = f"Invalid value for '{param}'" if param else "Invalid request body"
    return RequestError(
        f"{where}: {problem[:1].lower()}{problem[1:]}{expected}.", param=param or None
    )


def _no_json(culprit: Culprit | None, error: Exception) -> RequestError:
    if culprit is None:
        return RequestError(f"The request body is not valid JSON: {error}.", code="invalid_json")
    where = f"Invalid value for '{culprit.path}'" if culprit.path else "Invalid request body"
    return RequestError(f"{where}: {culprit.problem}.", param=culprit.path or None)
