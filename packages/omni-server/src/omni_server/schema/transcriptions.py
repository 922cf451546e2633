"""The form of POST /v1/audio/transcriptions and /v1/audio/translations as clients may write it.

Knows field names, types and ranges of the OpenAI API reference plus Omni's extensions. An empty
value equals an absent one; unknown fields are ignored. What a field means is not decided here.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from omni_server.schema.chat import PositiveInt, Seconds, Seed

ResponseFormat: TypeAlias = Literal["json", "text", "srt", "vtt", "verbose_json"]
FORMATS: tuple[ResponseFormat, ...] = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = ("segment", "word")
LISTS = (
    "include",
    "timestamp_granularities",
    "languages",
    "keywords",
    "known_speaker_names",
    "known_speaker_references",
)
OBJECTS = ("chunking_strategy",)
HINTS = {
    "stream": "true or false",
    "chunking_strategy": 'auto, or an object of type "server_vad"',
}

SamplingTemperature: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=60_000)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class ServerVad(msgspec.Struct, tag_field="type", tag="server_vad"):
    """How the caller wants audio to be cut at pauses."""

    silence_duration_ms: Milliseconds | None = None
    prefix_padding_ms: Milliseconds | None = None
    threshold: Share | None = None


class TranscriptionForm(msgspec.Struct, kw_only=True):
    """Speech to write down, and how; the recording itself is `file`."""

    model: str | None = None
    language: str | None = None
    prompt: str = ""
    response_format: str = "json"
    temperature: SamplingTemperature | None = None
    stream: bool = False
    timestamp_granularities: list[str] = []
    include: list[str] = []
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    languages: list[str] = []
    keywords: list[str] = []
    known_speaker_names: list[str] = []
    known_speaker_references: list[str] = []

    max_tokens: PositiveInt | None = None
    seed: Seed | None = None
    timeout: Seconds | None = None
    user: str | None = None
