"""The form of POST /v1/audio/voices as clients may write it.

Knows field names, types and ranges of OpenAI's API, and `ref_text` as in speech. An empty value
equals an absent one; unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from omni_server.voices.names import MOST_CHARACTERS

MOST_CONSENT_CHARACTERS = 512
HINTS = {"type": "a voice is made of a recording here, an audio_sample"}
VoiceName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS)]
Consent: TypeAlias = Annotated[str, Meta(max_length=MOST_CONSENT_CHARACTERS)]


class VoiceForm(msgspec.Struct, kw_only=True):
    """A voice to keep; its recording is `audio_sample`."""

    name: VoiceName
    ref_text: str = ""
    consent: Consent | None = None
    type: Literal["audio_sample"] = "audio_sample"
