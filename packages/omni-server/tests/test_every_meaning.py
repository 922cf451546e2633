"""Values of the right type that mean nothing, in every field of every request: refused by name.

A test fails for a new field of which the type says no more than that it is a string. Types and
ranges are `test_every_field`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec.inspect as types
import numpy as np
import pytest

from omni_core.media import wav_bytes
from omni_server.form import MAX_FIELD_BYTES
from omni_server.openapi import JSON, OPERATIONS
from omni_server.schema.transcriptions import TranscriptionForm

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
RAW = "/v1/completions"
BODIES = {
    (method.upper(), path): operation.body[1]
    for (method, path), operation in OPERATIONS.items()
    if operation.body is not None and operation.body[0] == JSON
}
HI = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
JSON_SCHEMA = {"type": "json_schema"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def shown(**part: Any) -> dict[str, Any]:
    [kind] = part
    return {"messages": [{"role": "user", "content": [{"type": kind, **part}]}]}


def after(**message: Any) -> dict[str, Any]:
    return {"messages": [HI, message, HI]}


def allowed(**choice: Any) -> dict[str, Any]:
    inner = {"mode": "auto", "tools": [{"function": {"name": "f"}}], **choice}
    return {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": inner}}


PART = "messages[0].content[0]"
UNKNOWN = {
    CHAT: {
        "model": ({"model": "gpt-4o"}, "model"),
        "messages[].role": (after(role="robot", content="x"), "messages[1].role"),
        "messages[].content": ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        "messages[].content[].input_audio.data": (
            shown(input_audio={"data": "!!"}), f"{PART}.input_audio",
        ),
        "messages[].content[].input_audio.format": (
            shown(input_audio={"data": "AAAA", "format": "midi"}), f"{PART}.input_audio.format",
        ),
        **{
            f"messages[].content[].{kind}_url{below}": (
                shown(**{f"{kind}_url": {"url": "file:///x"} if below else "file:///x"}),
                f"{PART}.{kind}_url",
            )
            for kind in ("image", "audio", "video")
            for below in ("", ".url")
        },
        "messages[].audio.id": (
            after(role="assistant", audio={"id": "audio_none"}), "messages[1].audio.id",
        ),
        "messages[].tool_calls[].type": (
            after(role="assistant", tool_calls=[{**CALL, "type": "custom"}]),
            "messages[1].tool_calls[0].type",
        ),
        "messages[].tool_calls[].function.arguments": (
            after(role="assistant", tool_calls=[
                {"id": "c", "function": {"name": "f", "arguments": "{"}}
            ]),
            "messages[1].tool_calls[0].function.arguments",
        ),
        "messages[].tool_call_id": (
            after(role="tool", content="x", tool_call_id="nobody"), "messages[1].tool_call_id",
        ),
        "messages[].function_call": (
            after(role="assistant", function_call={"name": "f"}), "messages[1].function_call",
        ),
        "modalities[]": ({"modalities": ["smell"]}, "modalities"),
        "audio.voice": ({"modalities": ["audio"], "audio": {"voice": "nobody"}}, "audio.voice"),
        "audio.voice.id": ({"audio": {"voice": {"id": "nobody"}}}, "audio.voice"),
        "audio.format": ({"modalities": ["audio"], "audio": {"format": "midi"}}, "audio.format"),
        "stop": ({"stop": ""}, "stop"),
        "stop[]": ({"stop": [""]}, "stop"),
        **{
            name + "[]": ({name: ["ftp://x"]}, f"{name}[0]")
            for name in ("images", "audios", "videos")
        },
        "stage_params[...][...]": ({"stage_params": {"voice": {"x": 1}}}, "stage_params.voice.x"),
        "tools[].type": ({"tools": [{"type": "smell"}]}, "tools[0].type"),
        "tools[].function.name": (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        "tools[].function.parameters[...]": (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]},
            "tools[0].function.parameters.type",
        ),
        "tool_choice": ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
        "tool_choice.type": (
            {"tools": TOOLS, "tool_choice": {"type": "smell"}}, "tool_choice.type",
        ),
        "tool_choice.function.name": (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        "tool_choice.allowed_tools.mode": (
            allowed(mode="perhaps"), "tool_choice.allowed_tools.mode",
        ),
        "tool_choice.allowed_tools.tools[].function.name": (
            allowed(tools=[{"function": {"name": "g"}}]),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        "response_format.type": ({"response_format": {"type": "smell"}}, "response_format.type"),
        "response_format.json_schema.schema[...]": (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "x", "schema": {"description": "x" * 70_000}}}},
            "response_format.json_schema.schema",
        ),
        "metadata[...]": ({"metadata": {"a": "x" * 513}}, "metadata"),
        **{
            name: ({name: {"smell": 1}}, name)
            for name in (
                "functions", "function_call", "reasoning_effort", "service_tier", "verbosity",
                "web_search_options", "moderation", "mm_processor_kwargs",
            )
        },
    },
    SPEECH: {
        "input": ({"input": "  "}, "input"),
        "model": ({"model": "tts-1"}, "model"),
        "voice": ({"voice": "nobody"}, "voice"),
        "voice.id": ({"voice": {"id": ""}}, "voice"),
        "instructions": ({"instructions": "loud"}, "instructions"),
        "response_format": ({"response_format": "midi"}, "response_format"),
        "stream_format": ({"stream_format": "smell"}, "stream_format"),
        "stage_params[...][...]": ({"stage_params": {"nose": {}}}, "stage_params.nose"),
        "ref_audio": ({"ref_audio": "AAAA"}, "ref_audio"),
        "ref_text": ({"ref_text": "Hi"}, "ref_text"),
        "speaker_embedding": ({"speaker_embedding": [0.5]}, "speaker_embedding"),
    },
    RAW: {
        "model": ({"model": "davinci-002"}, "model"),
        "prompt": ({"prompt": ""}, "prompt"),
        "prompt[]": ({"prompt": ["a", ""]}, "prompt[1]"),
        "stop": ({"stop": ""}, "stop"),
        "stop[]": ({"stop": [""]}, "stop"),
        "stage_params[...][...]": ({"stage_params": {"nose": {}}}, "stage_params.nose"),
        **{
            name: ({name: {"smell": 1}}, name)
            for name in ("suffix", "response_format", "tools", "modalities", "audio")
        },
    },
    "/admin/log-level": {},
    "/admin/profile": {"stage": ({"stage": "nose"}, "stage")},
    "/admin/profiler/start": {"stages[]": ({"stages": ["nose"]}, "stages")},
    "/admin/weights": {"path": ({"path": "../.."}, "path")},
}  # fmt: skip
"""{path: {field: (a body with a value that is none of those there are, its name in the error)}}"""
BASES = {CHAT: {"messages": [HI]}, SPEECH: {"input": "Hi"}, RAW: {"prompt": "Hi"}}
FREE = {
    CHAT: {
        "messages[].content[].text", "messages[].content[].refusal", "messages[].refusal",
        "messages[].tool_calls[].id", "messages[].tool_calls[].function.name",
        "tools[].function.description", "response_format.json_schema.name",
        "response_format.json_schema.description", "prediction.content", "prompt_cache_key",
        "user", "safety_identifier",
    },
    SPEECH: {"user"},
    RAW: {"user"},
    "/admin/log-level": set(),
    "/admin/profile": set(),
    "/admin/profiler/start": set(),
    "/admin/weights": set(),
}  # fmt: skip
"""Fields that may say anything."""


def alternatives(kind: types.Type) -> tuple[types.Type, ...]:
    return kind.types if isinstance(kind, types.UnionType) else (kind,)


def unchecked(kind: types.Type, path: str = "") -> Iterator[str]:
    """Fields of which types say nothing but that they are strings, or not even that."""
    for one in alternatives(kind):
        match one:
            case types.StructType(fields=fields):
                for field in fields:
                    yield from unchecked(field.type, f"{path}.{field.encode_name}".lstrip("."))
            case types.ListType(item_type=item):
                yield from unchecked(item, f"{path}[]")
            case types.DictType(value_type=item):
                yield from unchecked(item, f"{path}[...]")
            case types.StrType(max_length=None, pattern=None) | types.AnyType() | types.RawType():
                yield path


@pytest.mark.parametrize(("method", "path"), BODIES)
def test_no_string_is_without_rows(method, path):
    fields = set(unchecked(types.type_info(BODIES[method, path])))
    known = set(UNKNOWN[path]) | FREE[path]
    assert fields <= known
    assert FREE[path] <= fields
    assert not set(UNKNOWN[path]) & FREE[path]


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_unknown_values_are_refused_by_the_field(able, kit, method, path):
    for field, (body, param) in UNKNOWN[path].items():
        content = json.dumps({**BASES.get(path, {}), **body})
        error = kit.error_of(await able.http.request(method, path, content=content), 400, 404)
        assert error["param"] == param, field
    await kit.unharmed(able)


# --- forms ----------------------------------------------------------------------------------------

FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
FILE = {"file": ("a.wav", wav_bytes(np.sin(np.arange(16_000, dtype="f4") * 0.1), 16_000))}
NO_NUMBER = ("smell", "nan", "inf", "-inf", "true", "[]", "{}", "1e400", str(2**70), "1,5", "½")
OF_A_FORM: dict[str, tuple[str, ...]] = {
    "model": ("whisper-1",),
    "language": ("klingon", "e", "zz", "en,de"),
    "response_format": ("midi", "JSON", "diarized_json"),
    "temperature": (*NO_NUMBER, "-0.1", "1.1"),
    "stream": ("smell", "2", "nan", "[]"),
    "timestamp_granularities": ("smell", "word"),
    "include": ("smell",),
    "chunking_strategy": ("smell", '{"type": "smell"}', "{", "[]"),
    "languages": ("en",),
    "keywords": ("Omni",),
    "known_speaker_names": ("Ann",),
    "known_speaker_references": ("data:audio/wav;base64,AAAA",),
    "max_tokens": (*NO_NUMBER, "0", "-1", "1.5"),
    "seed": (*NO_NUMBER, "1.5"),
    "timeout": (*NO_NUMBER, "0", "-1"),
}
FREE_OF_A_FORM = {"prompt", "user"}


def test_no_field_of_a_form_is_without_rows():
    fields = {field.encode_name for field in types.type_info(TranscriptionForm).fields}
    assert fields == set(OF_A_FORM) | FREE_OF_A_FORM


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("field", sorted({*OF_A_FORM, *FREE_OF_A_FORM}))
async def test_bad_values_of_a_form_are_refused_by_the_field(able, kit, path, field):
    for value in OF_A_FORM.get(field, ()):
        response = await able.http.post(path, data={field: value}, files=FILE)
        error = kit.error_of(response, 400, 404)
        assert error["param"].removesuffix(".type") == field, value
    surrogate = {**FILE, field: (None, b"\xed\xa0\x80")}
    error = kit.error_of(await able.http.post(path, files=surrogate), 400)
    assert error["param"] == field
    long = {field: "x" * (MAX_FIELD_BYTES + 1)}
    error = kit.error_of(await able.http.post(path, data=long, files=FILE), 413)
    assert error["param"] == field
    await kit.unharmed(able)


@pytest.mark.parametrize("path", FORMS)
async def test_bad_uploads_are_refused_by_the_field(able, kit, path):
    for upload in (
        b"",
        b"noise",
        b"RIFF\xff\xff\xff\xffWAVE",
        wav_bytes(np.empty(0, "f4"), 16_000),
    ):
        error = kit.error_of(await able.http.post(path, files={"file": ("a.wav", upload)}), 400)
        assert error["param"] == "file", upload
    for missing in ({"data": {"model": kit.MODEL}}, {"files": {"audio": b"x"}}):
        error = kit.error_of(await able.http.post(path, **missing), 400)
        assert error["param"] in ("file", None)
    await kit.unharmed(able)


# --- names in paths and headers -------------------------------------------------------------------

PLACE = "place of something deep"
ODD_NAMES = ("nobody", "x" * 5_000, "%00", "%ff%fe", "%ed%a0%80", "..%2f..%2fetc", "%F0%9F%8E%99")


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: name[:12])
async def test_odd_names_in_paths(able, kit, name):
    asked = [
        ("GET", f"/v1/models/{name}", 404),
        ("DELETE", f"/v1/audio/voices/{name}", 400),
        ("POST", f"/v1/requests/{name}/cancel", 404),
        ("POST", f"/v1/requests/x/cancel?user={name}", 404),
    ]
    for method, path, status in asked:
        kit.error_of(await able.http.request(method, path), status)
    await kit.unharmed(able)


@pytest.mark.parametrize("name", [b"x" * 129, b"a\tb", b"\xff"])
async def test_odd_request_ids(able, kit, name):
    for path, body in ((CHAT, {"messages": [HI]}), (SPEECH, {"input": "Hi"})):
        response = await able.http.post(path, json=body, headers={b"x-request-id": name})
        assert kit.error_of(response, 400)["param"] == "x-request-id"
    await kit.unharmed(able)


@pytest.mark.parametrize("depth", [101, 900, 960, 990, 2_000])
async def test_json_that_only_later_steps_could_not_follow(able, kit, depth):
    """The body may be read, and what turns it to text again, or to a grammar, may not."""
    deep = '{"a":' * depth + "1" + "}" * depth
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    for body, field in [
        ({"tools": [{**CALL, "function": {"name": "f", "parameters": PLACE}}]}, "tools"),
        ({"response_format": {**JSON_SCHEMA, "json_schema": {"name": "x", "schema": PLACE}}},
         "response_format"),
        (after(role="assistant", tool_calls=[call]),
         "messages[1].tool_calls[0].function.arguments"),
    ]:  # fmt: skip
        content = json.dumps({"messages": [HI], **body}).replace(f'"{PLACE}"', deep)
        error = kit.error_of(await able.http.post(CHAT, content=content), 400)
        assert error["param"].startswith(field)
    await kit.unharmed(able)


async def test_an_unknown_field_changes_nothing(able):
    """Other servers' own options: clients send them to everybody."""
    assert (await able.chat(smell={"of": [1, None, "x"]})).status_code == 200
