"""GET /openapi.json: every route, every field of the openai package's requests, real answers."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

import msgspec
import numpy as np
import pytest
from openai.types.audio.speech_create_params import SpeechCreateParams
from openai.types.audio.transcription_create_params import (
    TranscriptionCreateParamsNonStreaming,
    TranscriptionCreateParamsStreaming,
)
from openai.types.audio.translation_create_params import TranslationCreateParams
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.completion_create_params import (
    CompletionCreateParamsNonStreaming as RawCompletionCreateParamsNonStreaming,
)
from openai.types.completion_create_params import (
    CompletionCreateParamsStreaming as RawCompletionCreateParamsStreaming,
)
from typing_extensions import is_typeddict

from omni_core.media import wav_bytes
from omni_server.keys import KeyRing
from omni_server.openapi import EVENTS, JSON, OPERATIONS
from omni_server.schema import answers, operations
from omni_server.settings import Settings

REQUESTS = [
    ("/v1/chat/completions", CompletionCreateParamsNonStreaming),
    ("/v1/chat/completions", CompletionCreateParamsStreaming),
    ("/v1/completions", RawCompletionCreateParamsNonStreaming),
    ("/v1/completions", RawCompletionCreateParamsStreaming),
    ("/v1/audio/speech", SpeechCreateParams),
    ("/v1/audio/transcriptions", TranscriptionCreateParamsNonStreaming),
    ("/v1/audio/transcriptions", TranscriptionCreateParamsStreaming),
    ("/v1/audio/translations", TranslationCreateParams),
]
OF_REFUSED_TYPES = {"file", "custom"}
"""Fields of content parts, tools and calls whose `type` is refused by name."""
WRAPPERS = (Annotated, Required, NotRequired)


@pytest.fixture
async def guarded(pipeline, kit):
    """A server with keys, and who asks it has none."""
    settings = Settings(
        served_model_name=kit.MODEL,
        api_keys=KeyRing.of(["user"]),
        admin_keys=KeyRing.of(["admin"]),
    )
    live = kit.shortcut(pipeline, settings)
    async with live.http:
        yield live


@pytest.fixture
async def document(guarded):
    response = await guarded.http.get("/openapi.json", headers={"x-api-key": "user"})
    assert response.status_code == 200
    return response.json()


class Schemas:
    """Schemas of a document, with references followed."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.components = document["components"]["schemas"]

    def alternatives(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The schema, or those it is one of."""
        if "$ref" in schema:
            yield from self.alternatives(self.components[schema["$ref"].rpartition("/")[2]])
        elif "anyOf" in schema:
            for alternative in schema["anyOf"]:
                yield from self.alternatives(alternative)
        else:
            yield schema

    def missing(self, kind: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
        """Fields of a type of the openai package that a schema does not have."""
        variants = list(self.alternatives(schema))
        if {} in variants:  # it may hold anything
            return
        origin, inner = get_origin(kind), get_args(kind)
        if is_typeddict(kind):
            for name, field in typing.get_type_hints(kind).items():
                found = [v["properties"][name] for v in variants if name in v.get("properties", ())]
                below = f"{path}.{name}"
                if found:
                    yield from self.missing(field, {"anyOf": found}, below)
                elif name not in OF_REFUSED_TYPES:
                    yield below
        elif origin in WRAPPERS:
            yield from self.missing(inner[0], schema, path)
        elif origin in (Union, types.UnionType):
            for alternative in inner:
                yield from self.missing(alternative, schema, path)
        elif len(inner) == 1:  # a list
            items = [v["items"] for v in variants if "items" in v]
            yield from self.missing(inner[0], {"anyOf": items}, f"{path}[]") if items else ()


def body_of(document: dict[str, Any], path: str, method: str = "post") -> dict[str, Any]:
    [content] = document["paths"][path][method]["requestBody"]["content"].values()
    return content["schema"]


@pytest.mark.parametrize(("path", "kind"), REQUESTS, ids=lambda v: getattr(v, "__name__", v))
async def test_every_field_of_the_openai_package_is_in_the_document(document, path, kind):
    assert not list(Schemas(document).missing(kind, body_of(document, path), path))


async def test_a_field_that_is_not_there_is_found(document):
    """The comparison goes as deep as the fields of parts, of functions and of choices of tools."""
    for name, field in [("InputAudio", "format"), ("ImageUrl", "detail"), ("AllowedTools", "mode"),
                        ("FunctionDefinition", "strict"), ("StreamOptions", "include_usage"),
                        ("ChatBody", "safety_identifier")]:  # fmt: skip
        fewer = json.loads(json.dumps(document))
        del fewer["components"]["schemas"][name]["properties"][field]
        found = Schemas(fewer).missing(
            CompletionCreateParamsStreaming, body_of(fewer, "/v1/chat/completions"), ""
        )
        assert any(path.endswith(f".{field}") for path in found), field


async def test_every_route_is_described_and_every_description_has_a_route(document):
    paths = document["paths"]
    routes = {(method, path) for path, methods in paths.items() for method in methods}
    assert routes == set(OPERATIONS)
    for method, path in routes:
        said = paths[path][method]
        assert said["description"]
        assert said["responses"]["4XX"]["$ref"] == "#/components/responses/Error"
        assert "422" not in said["responses"]


async def test_every_reference_leads_somewhere(document):
    text = json.dumps(document)
    assert document["openapi"].startswith("3.1")
    for reference in set(text.split('"$ref": "')[1:]):
        at = document
        for step in reference.partition('"')[0].removeprefix("#/").split("/"):
            at = at[step]
    assert "HTTPValidationError" not in document["components"]["schemas"]


KEYS = {
    (200, 200): set(),
    (401, 200): {"apiKey", "xApiKey"},
    (401, 403): {"adminKey", "xAdminKey"},
}
"""{statuses without a key and with an API key, where all that are no refusal count as 200: keys}"""


async def test_keys_are_asked_for_where_they_are_needed(guarded, document):
    """As the document says of each route, so is the answer to who has no key, or no admin's."""
    schemes = set(document["components"]["securitySchemes"])
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            names = {name for one in said["security"] for name in one}
            assert names <= schemes
            answers = [
                (await guarded.http.request(method, path, headers=headers)).status_code
                for headers in ({}, {"x-api-key": "user"})
            ]
            refused = tuple(code if code in (401, 403) else 200 for code in answers)
            assert names == KEYS[refused], (method, path)


async def test_without_keys_nothing_asks_for_any_and_there_is_no_admin(local):
    document = (await local.http.get("/openapi.json")).json()
    assert "securitySchemes" not in document["components"]
    assert not any(path.startswith("/admin/") for path in document["paths"])
    assert document["paths"]["/v1/models"]["get"]["security"] == []


async def test_words_that_a_field_knows_are_named(document, kit):
    schemas = Schemas(document)

    def words(schema, field):
        said = schemas.components[schema]["properties"][field]
        variants = [v.get("items", v) for v in schemas.alternatives(said)]
        return next(v["enum"] for v in variants if "enum" in v)

    assert words("ChatBody", "model") == [kit.MODEL]
    assert words("ChatMessage", "role") == ["system", "developer", "user", "assistant", "tool"]
    assert words("ChatBody", "modalities") == ["text", "audio"]
    assert "pcm16" in words("AudioOptions", "format")
    assert words("SpeechBody", "stream_format") == ["audio", "sse"]
    assert "de" in words("TranscriptionForm", "language")


def fits(answer: Any, kind: Any) -> None:
    """Each field of the answer stands in the type, and all that must be there is."""
    assert msgspec.to_builtins(msgspec.convert(answer, kind)) == answer


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_real_answers_are_as_described(local, kit):
    spoken = {"modalities": ["text", "audio"], "include_timeline": True}
    for body in ({}, spoken):
        fits((await local.chat(**body)).json(), answers.ChatCompletion)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        for event in events((await local.chat(**options, **body)).text):
            fits(event, answers.ChatCompletionChunk)
    raw = {"prompt": ["Hi", "Ho"], "n": 2}
    fits((await local.http.post("/v1/completions", json=raw)).json(), answers.Completion)
    for event in events((await local.http.post("/v1/completions", json={**raw, **options})).text):
        fits(event, answers.CompletionChunk)
    speech = {"input": "Hi", "stream_format": "sse"}
    spoken_events = events((await local.http.post("/v1/audio/speech", json=speech)).text)
    assert len(spoken_events) > 1
    for event in spoken_events:
        fits(event, answers.SpeechEvent)
    for path, kind in [
        ("/v1/audio/voices", answers.VoiceList),
        ("/v1/models", answers.ModelList),
        (f"/v1/models/{kit.MODEL}", answers.Model),
        ("/live", operations.Liveness),
    ]:
        fits((await local.http.get(path)).json(), kind)
    for body in ({"temperature": -1}, {"messages": 5}):
        fits((await local.chat(**body)).json(), answers.ErrorAnswer)


async def test_real_transcriptions_are_as_described(able):
    tone = np.sin(np.arange(16_000, dtype=np.float32) * 0.1)
    path, files = "/v1/audio/transcriptions", {"file": wav_bytes(tone, 16_000)}
    described = OPERATIONS["post", path].answers
    for asked, kind in [
        ({"include[]": "logprobs"}, answers.Transcription),
        ({"response_format": "verbose_json"}, answers.VerboseTranscription),
    ]:
        fits((await able.http.post(path, data=asked, files=files)).json(), kind)
        assert kind in described[JSON]
    streamed = await able.http.post(path, data={"stream": "true"}, files=files)
    assert len(events(streamed.text)) > 1
    for event in events(streamed.text):
        fits(event, described[EVENTS])
    for name in ("text", "srt", "vtt"):
        response = await able.http.post(path, data={"response_format": name}, files=files)
        assert response.headers["content-type"].partition(";")[0] in described


async def test_media_types_of_answers_are_as_described(local):
    for name in ("mp3", "pcm"):
        speech = {"input": "Hi", "response_format": name}
        response = await local.http.post("/v1/audio/speech", json=speech)
        kind = response.headers["content-type"].partition(";")[0]
        assert kind in OPERATIONS["post", "/v1/audio/speech"].answers
    chat = OPERATIONS["post", "/v1/chat/completions"].answers
    assert set(chat) == {JSON, EVENTS}
