"""The request that passes a process before it serves. Knows the pipeline's own API, no stage."""

from __future__ import annotations

from typing import Final

from omni_core.types import Message, Modality, Request, RequestParams, SamplingParams, TextPart

_WARM_UP_TEXT: Final = "Hello"
_WARM_UP_TOKENS: Final = 4


def warm_up_request(modalities: tuple[Modality, ...], stages: tuple[str, ...]) -> Request:
    """A short request for these modalities."""
    short = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS)
    hello = Message(role="user", content=(TextPart(text=_WARM_UP_TEXT),))
    params = RequestParams(
        modalities=modalities, sampling=short, stage_params=dict.fromkeys(stages, short)
    )
    return Request(messages=(hello,), params=params, request_id="warm-up")
