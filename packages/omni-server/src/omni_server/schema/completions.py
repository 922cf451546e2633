"""The body of POST /v1/completions as clients may write it.

Knows field names, types and ranges of the OpenAI API reference plus Omni's extensions. null equals
absent; unknown fields are ignored. What a field means is not decided here.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from omni_server.schema.chat import NULL, PositiveInt, SamplingFields, Seconds, StreamOptions

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
FewLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=5)]


class CompletionBody(SamplingFields, kw_only=True):
    """A text to continue. What may be anything belongs to chats, and is served only where it asks
    for nothing."""

    prompt: str | list[str | TokenId | list[TokenId]]
    """One text; texts; the token ids of one prompt; those of several."""
    model: str | None = None
    n: PositiveInt | None = None
    best_of: PositiveInt | None = None
    echo: bool | None = None
    logprobs: FewLogprobs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stage_params: dict[str, dict[str, Any] | None] | None = None
    timeout: Seconds | None = None
    user: str | None = None

    suffix: msgspec.Raw = NULL
    response_format: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    modalities: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
