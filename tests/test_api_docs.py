"""docs/api.md: every field of every body has a row, every row a field, and every route a place.

docs/api-fields.md: it is what the OpenAPI document says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import api_fields
from omni_core.media.encode_stream import STREAM_MEDIA_TYPES
from omni_server.audio import FORMATS
from omni_server.openai.transcriptions_call import FILE
from omni_server.openapi import OPERATIONS
from omni_server.schema import transcriptions
from omni_server.schema.chat import AllowedTools, ChatBody, ChatMessage
from omni_server.schema.completions import CompletionBody
from omni_server.schema.speech import SpeechBody
from omni_server.schema.transcriptions import ServerVad, TranscriptionForm

DOCS = Path(__file__).resolve().parent.parent / "docs"
API = (DOCS / "api.md").read_text()
BODIES: dict[str, tuple[type, set[str]]] = {
    "Chat completions": (ChatBody, set()),
    "Completions": (CompletionBody, set()),
    "Speech": (SpeechBody, set()),
    "Transcriptions and translations": (TranscriptionForm, {FILE}),
}
"""{section: (type of the body, fields that it has besides)}"""
PARTS = "parts"
"""The row of what `content` may be a list of."""
WORDS = [
    ("Chat completions", "audio", FORMATS),
    ("Chat completions", "modalities", ("text", "audio")),
    ("Speech", "response_format", STREAM_MEDIA_TYPES),
    ("Transcriptions and translations", "response_format", transcriptions.FORMATS),
]


def section(title: str) -> str:
    """What stands under a heading, its own parts included."""
    [text] = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##? |^### |\Z)", API, re.M | re.S)
    return str(text)


def rows(title: str) -> dict[str, str]:
    """{name: meaning} of a section's table of fields; rows that are about several are several."""
    table = section(title).partition("| field | meaning |")[2].partition("\n\n")[0]
    found = {}
    for line in table.strip().splitlines()[1:]:
        names, meaning = line.strip("| ").split(" | ", 1)
        for name in re.findall(r"`([^`]+)`", names) or [names]:
            assert name not in found, f"{name} has two rows"
            found[name] = meaning
    return found


@cache
def components(kind: type) -> dict[str, Any]:
    """The JSON schemas of a body and of all that it holds."""
    return msgspec.json.schema_components([kind], ref_template="{name}")[1]


def below(field: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """{name: field} of each type that a field may be."""
    if "$ref" in field:
        yield schemas[field["$ref"]]["properties"]
    for alternative in (*field.get("anyOf", ()), field.get("items", {})):
        if alternative:
            yield from below(alternative, schemas)


def has(path: str, kind: type) -> bool:
    """Whether a body has a field of this name, or of this path."""
    schemas = components(kind)
    levels = [schemas[kind.__name__]["properties"]]
    for name in path.split("."):
        fields = [level[name] for level in levels if name in level]
        if not fields:
            return False
        levels = [level for field in fields for level in below(field, schemas)]
    return True


@pytest.mark.parametrize("title", BODIES)
def test_every_field_has_a_row(title: str) -> None:
    kind, more = BODIES[title]
    named = {name.removesuffix("[]").partition(".")[0] for name in rows(title)}
    fields = {*kind.__struct_fields__, *more}  # type: ignore[attr-defined]
    assert len(fields) > 10
    assert fields <= named


@pytest.mark.parametrize("title", BODIES)
def test_every_row_has_a_field(title: str) -> None:
    kind, more = BODIES[title]
    for name in rows(title):
        assert name in {PARTS, *more} or has(name.removesuffix("[]"), kind), name


@pytest.mark.parametrize(("title", "field", "words"), WORDS)
def test_every_word_that_a_field_knows_is_in_its_row(title: str, field: str, words: Any) -> None:
    said = rows(title)[field]
    for word in words:
        assert re.search(rf"\b{word}\b", said), word


def test_every_route_is_spoken_of() -> None:
    documented = API + (DOCS / "operations.md").read_text()
    for _, path in OPERATIONS:
        shown = re.sub(r"\{\w+\}", "{id}", path)
        assert f" {shown}`" in documented, path


def test_the_page_of_fields_is_that_of_the_document() -> None:
    written = (DOCS / "api-fields.md").read_text()
    assert written == api_fields.page(api_fields.document()), "run tests/api_fields.py, see there"
    for kind in (ChatMessage, ServerVad, AllowedTools):
        assert f"### {kind.__name__}\n" in written
