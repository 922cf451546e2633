"""What a stage that samples text hands to the one that decodes it (`decode`): `ReplyStart`, then a
`TokenChunk` a token."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from omni_core.types import FinishReason


class ReplyStart(TypedDict):
    """What decode must know of the prompt."""

    calls: bool
    """The reply may call functions, so their markup is no text."""

    opened: bool
    """The prompt's last turn has begun a thought (`<think>`) for the reply to continue."""

    raw: bool
    """See `Prompt`."""


class Logprobs(TypedDict):
    """Of one sampled token; see `omni_core.engine.base.TokenLogprobs`."""

    token: float
    """Its own."""
    top_ids: list[int]
    """The likeliest tokens."""
    top: list[float]
    """Theirs."""


class TokenChunk(TypedDict):
    """One sampled token of the reply. End tokens come too; decode never shows them."""

    token: int
    finish: FinishReason | None
    logprobs: NotRequired[Logprobs]
    """If the request asks for them."""
