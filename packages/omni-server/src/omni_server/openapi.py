"""GET /openapi.json: every route with the fields of its body, its answers and its errors.

Routes read their bodies themselves, so FastAPI knows no more of them than paths: what they take and
give is said here, in the types that the bodies are decoded to. Decodes and answers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
from fastapi import FastAPI

from omni_core.languages import LANGUAGES
from omni_core.media.encode_stream import STREAM_MEDIA_TYPES, StreamFormats
from omni_core.pipeline import Health
from omni_server.admin import LogLevelBody, ProfileBody
from omni_server.audio import FORMATS
from omni_server.guard import Needs, needs
from omni_server.health import Readiness
from omni_server.openai.messages import ROLES
from omni_server.openai.speech_call import STREAM_FORMATS
from omni_server.openai.transcriptions_call import FILE
from omni_server.openai.transcriptions_reply import SUBRIP, WEBVTT
from omni_server.openai.voices_call import SAMPLE
from omni_server.profiler import ProfilerBody
from omni_server.schema import answers, operations, transcriptions
from omni_server.schema.chat import (
    AudioOptions,
    ChatBody,
    ChatMessage,
    ResponseFormat,
    SamplingFields,
)
from omni_server.schema.completions import CompletionBody
from omni_server.schema.speech import SpeechBody
from omni_server.schema.transcriptions import TranscriptionForm
from omni_server.schema.voices import VoiceForm
from omni_server.settings import Settings
from omni_server.weights import WeightsBody

Json: TypeAlias = dict[str, Any]
JSON: Final = "application/json"
FORM: Final = "multipart/form-data"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
RAW: Final = None
"""Of an answer that is text or a file."""
_SCHEMAS: Final = "#/components/schemas/"
_REQUEST_ID: Final[Json] = {
    "name": "x-request-id",
    "in": "header",
    "description": "What the client calls this request, to cancel it by; the answer repeats it.",
    "schema": {"type": "string", "maxLength": 128, "pattern": "^[ -~]*$"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one method of one path takes and gives."""

    answers: Mapping[str, Any]
    """{media type: type of the content, or several, or `RAW`}"""
    body: tuple[str, Any] | None = None
    """(media type, type)"""
    statuses: tuple[str, ...] = ("200",)
    is_work: bool = False
    """Runs under an id that can be cancelled."""

    @property
    def types(self) -> list[Any]:
        """All types it mentions."""
        said = [] if self.body is None else [self.body[1]]
        for kind in self.answers.values():
            said += kind if isinstance(kind, tuple) else [kind]
        return [kind for kind in said if kind is not RAW]


_SPEECH_TO_TEXT: Final = Operation(
    body=(FORM, TranscriptionForm),
    answers={
        JSON: (answers.Transcription, answers.VerboseTranscription),
        TEXT: RAW,
        SUBRIP: RAW,
        WEBVTT: RAW,
        EVENTS: answers.TranscriptEvent,
    },
    is_work=True,
)
_DOOR: Final = Operation(answers={JSON: operations.DoorAnswer})
OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("post", "/v1/chat/completions"): Operation(
        body=(JSON, ChatBody),
        answers={JSON: answers.ChatCompletion, EVENTS: answers.ChatCompletionChunk},
        is_work=True,
    ),
    ("post", "/v1/completions"): Operation(
        body=(JSON, CompletionBody),
        answers={JSON: answers.Completion, EVENTS: answers.CompletionChunk},
        is_work=True,
    ),
    ("post", "/v1/audio/speech"): Operation(
        body=(JSON, SpeechBody),
        answers={**dict.fromkeys(STREAM_MEDIA_TYPES.values()), EVENTS: answers.SpeechEvent},
        is_work=True,
    ),
    ("post", "/v1/audio/transcriptions"): _SPEECH_TO_TEXT,
    ("post", "/v1/audio/translations"): _SPEECH_TO_TEXT,
    ("get", "/v1/audio/voices"): Operation(answers={JSON: answers.VoiceList}),
    ("post", "/v1/audio/voices"): Operation(
        body=(FORM, VoiceForm), answers={JSON: answers.VoiceObject}
    ),
    ("get", "/v1/audio/voices/{voice_id}"): Operation(answers={JSON: answers.VoiceObject}),
    ("delete", "/v1/audio/voices/{voice_id}"): Operation(answers={JSON: answers.VoiceDeleted}),
    ("get", "/v1/models"): Operation(answers={JSON: answers.ModelList}),
    ("get", "/v1/models/{model_id}"): Operation(answers={JSON: answers.Model}),
    ("post", "/v1/requests/{request_id}/cancel"): Operation(answers={JSON: operations.Cancelled}),
    ("get", "/health"): Operation(answers={JSON: Health}, statuses=("200", "503")),
    ("get", "/ready"): Operation(answers={JSON: Readiness}, statuses=("200", "503")),
    ("get", "/live"): Operation(answers={JSON: operations.Liveness}),
    ("get", "/metrics"): Operation(answers={TEXT: RAW}),
    ("get", "/version"): Operation(answers={JSON: operations.Account}),
    ("get", "/admin/info"): Operation(answers={JSON: operations.Account}),
    ("post", "/admin/pause"): _DOOR,
    ("post", "/admin/continue"): _DOOR,
    ("get", "/admin/log-level"): Operation(answers={JSON: LogLevelBody}),
    ("put", "/admin/log-level"): Operation(body=(JSON, LogLevelBody), answers={JSON: LogLevelBody}),
    ("post", "/admin/profile"): Operation(body=(JSON, ProfileBody), answers={TEXT: RAW}),
    ("post", "/admin/weights"): Operation(
        body=(JSON, WeightsBody), answers={JSON: operations.WeightsLoaded}
    ),
    ("post", "/admin/profiler/start"): Operation(
        body=(JSON, ProfilerBody), answers={JSON: operations.Recordings}
    ),
    ("post", "/admin/profiler/stop"): Operation(answers={JSON: operations.Recordings}),
}
"""Every route of the server."""


class DocumentedApi(FastAPI):
    """An application whose document says what its routes take and give."""

    def __init__(self, settings: Settings, formats: StreamFormats, **options: Any) -> None:
        super().__init__(**options)
        self._settings = settings
        self._formats = formats
        self._document: Json | None = None

    def openapi(self) -> Json:
        """The document, made once."""
        if self._document is None:
            self._document = documented(super().openapi(), self._settings, self._formats)
        return self._document


def documented(paths_alone: Json, settings: Settings, formats: StreamFormats) -> Json:
    """FastAPI's document with bodies, answers, errors and keys."""
    schemas = _Schemas(OPERATIONS.values())
    _name_words(schemas.components, settings.served_model_name, formats)
    paths = {
        path: {
            method: _operation(method, path, said, schemas, settings)
            for method, said in methods.items()
        }
        for path, methods in paths_alone["paths"].items()
    }
    error = {"description": "What is wrong, as OpenAI's error object.", "content": {}}
    error["content"] = {JSON: {"schema": schemas.of(answers.ErrorAnswer)}}
    components: Json = {"schemas": schemas.components, "responses": {"Error": error}}
    if settings.api_keys or settings.admin_keys:
        components["securitySchemes"] = _SECURITY_SCHEMES
    return {**paths_alone, "paths": paths, "components": components}


@dataclass(slots=True)
class _Schemas:
    """JSON schemas of the types that operations mention."""

    operations: Iterable[Operation]
    components: Json = field(init=False)
    _places: dict[Any, Json] = field(init=False)

    def __post_init__(self) -> None:
        kinds = [kind for operation in self.operations for kind in operation.types]
        kinds += [answers.ErrorAnswer, SamplingFields]
        places, self.components = msgspec.json.schema_components(
            kinds, ref_template=_SCHEMAS + "{name}"
        )
        self._places = dict(zip(kinds, places, strict=True))
        # By itself, decoding knows of no stage what it takes.
        for body in (ChatBody, CompletionBody, SpeechBody):
            stages = self.components[body.__name__]["properties"]["stage_params"]["anyOf"][0]
            stages["additionalProperties"] = {
                "anyOf": [self.of(SamplingFields), {"type": "null"}],
            }
        for kind, file in ((TranscriptionForm, FILE), (VoiceForm, SAMPLE)):
            form = self.components[kind.__name__]
            fields = {name: _without_null(said) for name, said in form["properties"].items()}
            form["properties"] = {file: {"type": "string", "format": "binary"}, **fields}
            form["required"] = [file, *form.get("required", ())]

    def of(self, kind: Any) -> Json:
        """The schema of a type, or of several, as a reference to where it stands."""
        if isinstance(kind, tuple):
            return {"anyOf": [self._places[alternative] for alternative in kind]}
        return self._places[kind]


def _name_words(components: Json, served_model_name: str, formats: StreamFormats) -> None:
    """Say which words a field knows, where its type leaves that to whoever reads the request."""
    served, roles = (served_model_name,), (*ROLES, "tool")
    words: Mapping[tuple[type, str], Iterable[str]] = {
        (ChatBody, "model"): served,
        (CompletionBody, "model"): served,
        (SpeechBody, "model"): served,
        (TranscriptionForm, "model"): served,
        (ChatMessage, "role"): roles,
        (ChatBody, "modalities"): ("text", "audio"),
        (AudioOptions, "format"): FORMATS,
        (ResponseFormat, "type"): ("text", "json_object", "json_schema"),
        (SpeechBody, "response_format"): formats.media_types,
        (SpeechBody, "stream_format"): STREAM_FORMATS,
        (TranscriptionForm, "language"): LANGUAGES,
        (TranscriptionForm, "response_format"): transcriptions.FORMATS,
        (TranscriptionForm, "timestamp_granularities"): ("segment",),
        (TranscriptionForm, "include"): ("logprobs",),
    }
    for (kind, name), known in words.items():
        said = components[kind.__name__]["properties"][name]
        for place in (said, said.get("items", {}), *said.get("anyOf", ())):
            for string in (place, place.get("items", {})):
                if string.get("type") == "string":
                    string["enum"] = list(known)


def _without_null(said: Json) -> Json:
    """A field as a form can write it, where a value that is not meant is left out."""
    if said.get("default", ...) is None:
        kinds = [kind for kind in said["anyOf"] if kind != {"type": "null"}]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return said


def _operation(method: str, path: str, said: Json, schemas: _Schemas, settings: Settings) -> Json:
    """What FastAPI says of an operation, and what we know of it."""
    known = OPERATIONS.get((method, path), Operation(answers={}))
    result: Json = {**said, "responses": _responses(known, schemas)}
    if known.body is not None:
        media_type, kind = known.body
        content = {media_type: {"schema": schemas.of(kind)}}
        result["requestBody"] = {"required": True, "content": content}
    if known.is_work:
        result["parameters"] = [*said.get("parameters", ()), _REQUEST_ID]
    result["security"] = _security(method, path, settings)
    return result


def _responses(known: Operation, schemas: _Schemas) -> Json:
    error = schemas.of(answers.ErrorAnswer)
    content = {
        media_type: {} if kind is RAW else {"schema": _content(media_type, schemas.of(kind), error)}
        for media_type, kind in known.answers.items()
    }
    answered = {"description": "The answer.", "content": content}
    refused = {"$ref": "#/components/responses/Error"}
    return {**dict.fromkeys(known.statuses, answered), "4XX": refused, "5XX": refused}


def _content(media_type: str, schema: Json, error: Json) -> Json:
    """The schema of an answer; of a stream, that of each event."""
    if media_type != EVENTS:
        return schema
    said = {"contentMediaType": JSON, "contentSchema": {"anyOf": [schema, error]}}
    data = {"anyOf": [{"type": "string", **said}, {"const": "[DONE]"}]}
    return {"type": "object", "properties": {"data": data}}


_SECURITY_SCHEMES: Final[Json] = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, or the admin's."},
    "xApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "adminKey": {"type": "http", "scheme": "bearer", "description": "An admin key."},
    "xAdminKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _security(method: str, path: str, settings: Settings) -> list[dict[str, list[str]]]:
    """The keys of which one opens an operation; none where it needs none."""
    match needs(method.upper(), path, settings):
        case Needs.NONE:
            return []
        case Needs.API:
            return [{"apiKey": []}, {"xApiKey": []}]
        case Needs.ADMIN:
            return [{"adminKey": []}, {"xAdminKey": []}]
