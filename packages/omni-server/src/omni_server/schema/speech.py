"""The body of POST /v1/audio/speech as clients may write it.

Knows field names, types and ranges of the OpenAI API reference plus Omni's extensions. null equals
absent; unknown fields are ignored. What a field means is not decided here.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from omni_core.media.encode_stream import MAX_SPEED, MIN_SPEED
from omni_server.schema.chat import NULL, Seconds, Seed, VoiceReference

MAX_INPUT_CHARACTERS = 4096

Input: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_INPUT_CHARACTERS)]
Speed: TypeAlias = Annotated[float, Meta(ge=MIN_SPEED, le=MAX_SPEED)]


class SpeechBody(msgspec.Struct, kw_only=True):
    """A text to read aloud. What may be anything is other servers' and served only where it asks
    for nothing."""

    input: Input
    model: str | None = None
    voice: str | VoiceReference | None = None
    instructions: str | None = None
    response_format: str | None = None
    speed: Speed | None = None
    stream_format: str | None = None

    seed: Seed | None = None
    stage_params: dict[str, dict[str, Any] | None] | None = None
    timeout: Seconds | None = None
    user: str | None = None

    ref_audio: str | None = None
    ref_text: str | None = None
    speaker_embedding: msgspec.Raw = NULL
