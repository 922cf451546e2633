"""Bad values for every field of every request: a 400 that names the field, and no harm done.

The rows are made of the types that bodies are decoded to. Strings whose meaning is checked later
have rows in `test_every_meaning`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec.inspect as types
import pytest

from omni_server.openapi import JSON, OPERATIONS
from omni_server.schema.chat import SamplingFields

Step: TypeAlias = str | int
Path: TypeAlias = tuple[Step, ...]
KEY = "5"
"""Of mappings; a name of nothing, and a token."""
DEEP = "the place of many brackets"
IS_NESTED = "is nested"
SURROGATE = "lone \ud800"
OF_EACH_TYPE: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": 7,
    "number": 0.5,
    "string": "smell",
    "array": [[]],
    "object": {"smell": 1},
}
CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
RAW = "/v1/completions"
BODIES = {
    (method.upper(), path): operation.body[1]
    for (method, path), operation in OPERATIONS.items()
    if operation.body is not None and operation.body[0] == JSON
}


@dataclass(frozen=True)
class Row:
    """A body that must be refused for one field."""

    path: Path
    value: Any
    why: str


def named(path: Path, *, below_keys: bool) -> str:
    """The field as an error names it; types are known for all values of a mapping alike."""
    text = ""
    for step in path:
        if step == KEY and not below_keys:
            text += "[...]"
        else:
            text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def field_of(path: Path) -> str:
    """The field as a schema names it."""
    return named(path, below_keys=False).replace("[0]", "[]")


def alternatives(kind: types.Type) -> tuple[types.Type, ...]:
    return kind.types if isinstance(kind, types.UnionType) else (kind,)


def accepted(kind: types.Type) -> set[str]:
    """Types of JSON that a type takes."""
    match kind:
        case types.NoneType():
            return {"null"}
        case types.BoolType():
            return {"boolean"}
        case types.IntType():
            return {"integer"}
        case types.FloatType():
            return {"integer", "number"}
        case types.StrType() | types.LiteralType():
            return {"string"}
        case types.ListType():
            return {"array"}
        case types.DictType() | types.StructType():
            return {"object"}
    return set(OF_EACH_TYPE)


def example(kind: types.Type) -> Any:
    """The smallest value of a type."""
    match next(k for k in alternatives(kind) if not isinstance(k, types.NoneType)):
        case types.StructType() as struct:
            tag = {} if struct.tag is None else {struct.tag_field: struct.tag}
            needed = [field for field in struct.fields if field.required]
            return {**tag, **{field.encode_name: example(field.type) for field in needed}}
        case types.ListType():
            return []
        case types.DictType():
            return {}
        case types.LiteralType(values=values):
            return values[0]
        case types.BoolType():
            return True
        case types.IntType() | types.FloatType():
            return 1
    return "x"


def rows(kind: types.Type) -> Iterator[Row]:
    """Bad values of a type and of all that it holds."""
    kinds = alternatives(kind)
    good = set().union(*map(accepted, kinds))
    for name, value in OF_EACH_TYPE.items():
        if name not in good:
            yield Row((), value, f"is {name}")
    for one in kinds:
        others = good - accepted(one)
        for row in rows_of_one(one):
            if row.path or not (isinstance(row.value, str) and "string" in others):
                yield row


def rows_of_one(kind: types.Type) -> Iterator[Row]:
    match kind:
        case types.StructType():
            yield from rows_of_struct(kind)
        case types.ListType(item_type=item):
            for row in rows(item):
                yield Row((0, *row.path), [row.value], row.why)
        case types.DictType(value_type=item):
            for row in rows(item):
                yield Row((KEY, *row.path), {KEY: row.value}, row.why)
        case types.IntType() | types.FloatType():
            yield from out_of_range(kind)
        case types.StrType():
            yield from rows_of_string(kind)
        case types.BoolType():
            yield Row((), "true", "is a word")
        case types.LiteralType():
            yield Row((), "smell", "is unknown")


def rows_of_string(kind: types.StrType) -> Iterator[Row]:
    yield Row((), SURROGATE, "has a lone surrogate")
    if kind.pattern:
        yield Row((), " \n ", "matches no pattern")
    if kind.min_length:
        yield Row((), "", "is empty")
    if kind.max_length:
        yield Row((), "x" * (kind.max_length + 1), "is too long")


def out_of_range(kind: types.IntType | types.FloatType) -> Iterator[Row]:
    for limit, value in [("gt", kind.gt), ("ge", kind.ge), ("lt", kind.lt), ("le", kind.le)]:
        if value is not None:
            outward = {"gt": 0, "ge": -1, "lt": 0, "le": 1}[limit]
            yield Row((), value + outward, f"is not {limit} {value}")
    whole = isinstance(kind, types.IntType)
    yield Row((), 2**70 if whole else 10**400, "is too large for a number")
    yield Row((), "1", "is a number in quotes")
    for value in (float("nan"), float("inf"), -float("inf")):
        yield Row((), value, f"is {value}")


def rows_of_struct(struct: types.StructType) -> Iterator[Row]:
    base = example(struct)
    for field in struct.fields:
        name = field.encode_name
        for row in rows(field.type):
            yield Row((name, *row.path), {**base, name: row.value}, row.why)
        if field.required:
            rest = {key: value for key, value in base.items() if key != name}
            yield Row((name,), rest, "is missing")
        yield Row((name,), {**base, name: DEEP}, IS_NESTED)
    if struct.tag is not None:
        yield Row((str(struct.tag_field),), {**base, struct.tag_field: "smell"}, "is unknown")


def written(value: Any) -> str:
    """A body as JSON, or with the words for numbers that JSON has not, as Python writes them."""
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 1_500 + "]" * 1_500)


async def wrong(able, kit, method: str, path: str, found: Iterable[Row]) -> list[Any]:
    """Rows that are not refused by the name of their field."""
    kept = []
    for row in found:
        response = await able.http.request(method, path, content=written(row.value))
        error = kit.error_of(response, 400)
        names = {named(row.path, below_keys=below) for below in (True, False)}
        said = error["param"] or ""
        if row.why == IS_NESTED:  # a field above may be as much as anybody reads
            names |= {said for name in names if name.startswith(said or "-")}
            names |= {said for name in names if said.startswith(name)}
        if said not in names:
            kept.append((named(row.path, below_keys=True), row.why, error))
    return kept


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_bad_values_are_refused_by_the_field(able, kit, method, path):
    found = list(rows(types.type_info(BODIES[method, path])))
    assert len(found) > 10
    assert not await wrong(able, kit, method, path, found)
    await kit.unharmed(able)


@pytest.mark.parametrize("path", [CHAT, SPEECH])
async def test_bad_sampling_of_a_stage_is_refused_by_the_field(able, kit, path):
    base = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, SPEECH: {"input": "Hi"}}[path]
    found = [
        Row(
            ("stage_params", "voice", *row.path),
            {**base, "stage_params": {"voice": row.value}},
            row.why,
        )
        for row in rows(types.type_info(SamplingFields))
        if row.path
    ]
    assert len(found) > 100
    assert not await wrong(able, kit, "POST", path, found)
    await kit.unharmed(able)
