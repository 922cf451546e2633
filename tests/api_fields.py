"""docs/api-fields.md: each field of each body with its type, made of the OpenAPI document.

`python tests/api_fields.py > docs/api-fields.md` writes it; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from omni_core.media.encode_stream import StreamFormats
from omni_server.keys import KeyRing
from omni_server.openapi import OPERATIONS, documented
from omni_server.settings import Settings

Json = dict[str, Any]
HEAD = """# Fields of the API

Each field of each body, its type and range, made of what `GET /openapi.json` says:
`python tests/api_fields.py > docs/api-fields.md`. [api.md](api.md) says what the fields mean. null
equals absent in JSON, and so does an empty value in a form. Integers have at most 64 bits.
"""
RANGES = {
    "minimum": "at least {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "under {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters at most",
}
MANY = 12
"""Words that are too many to list."""
INT64 = 2**63 - 1
SERVED = "the served model's id"


def document() -> Json:
    """The document of a server with everything switched on."""
    keys = KeyRing.of(["any"])
    settings = Settings(served_model_name=SERVED, api_keys=keys, admin_keys=keys)
    paths: Json = {}
    for method, path in OPERATIONS:
        paths.setdefault(path, {})[method] = {}
    return documented({"paths": paths}, settings, StreamFormats())


def page(said: Json) -> str:
    """The whole page."""
    schemas = said["components"]["schemas"]
    parts = [HEAD]
    shown: set[str] = set()
    for path, methods in said["paths"].items():
        for method, operation in methods.items():
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                name = content["schema"]["$ref"].rpartition("/")[2]
                heading = (
                    f"## {method.upper()} {path}\n\n`{media_type}`: {words(content['schema'])}\n"
                )
                parts.append(heading)
                parts += tables(name, schemas, shown)
    return "\n".join(parts)


def tables(name: str, schemas: Json, shown: set[str]) -> Iterator[str]:
    """The table of a type and of those it mentions, each where it is first mentioned."""
    if name in shown:
        return
    shown.add(name)
    schema = schemas[name]
    required = schema.get("required", ())
    lines = [f"### {name}\n", f"{schema['description']}\n", "| field | type |", "|---|---|"]
    for field, kind in schema["properties"].items():
        needed = "; must be there" if field in required else ""
        lines.append(f"| `{field}` | {words(kind)}{needed} |")
    yield "\n".join([*lines, ""])
    for other in mentioned(schema):
        yield from tables(other, schemas, shown)


def words(kind: Json) -> str:
    """A type in words."""
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        alternatives = [one for one in kind["anyOf"] if one != {"type": "null"}]
        return " or ".join(words(one) for one in alternatives)
    if "enum" in kind:
        known = kind["enum"]
        if known == [SERVED]:
            return SERVED
        listed = ", ".join(f"`{word}`" for word in known)
        return listed if len(known) <= MANY else f"one of {len(known)} words"
    if "items" in kind:
        return f"array of {words(kind['items'])}"
    if kind.get("type") == "object":
        inner = kind.get("additionalProperties")
        return f"object of {words(inner)}" if inner else "object"
    limits = {key: kind[key] for key in RANGES if key in kind and abs(kind[key]) < INT64}
    ranges = [RANGES[key].format(f"{limit:,.12g}") for key, limit in limits.items()]
    return ", ".join([kind.get("type", "anything"), *ranges])


def mentioned(schema: Any) -> Iterator[str]:
    """Names of the types that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for key, value in schema.items():
            if key != "discriminator":
                yield from mentioned(value)
    if isinstance(schema, list):
        for value in schema:
            yield from mentioned(value)


if __name__ == "__main__":
    sys.stdout.write(page(document()))
