"""What a chat call answers with: the completion object and its parts.

Shapes follow `ChatCompletion` of the openai package. Extensions, marked
where they are made: `sample_rate` beside audio data, `timeline`, and finer token details.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from omni_core.types import AudioDelta, Finished, StageSpan, Usage
from omni_server.audio import to_base64

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyIds:
    """What every object of one reply repeats."""

    model: str
    fingerprint: str
    completion_id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    audio_id: str = field(default_factory=lambda: f"audio_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


def usage_object(usage: Usage) -> Json:
    """`CompletionUsage`; completion tokens are text tokens plus codec frames, as OpenAI counts."""
    completion = usage.text_tokens + usage.audio_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": usage.prompt_tokens + completion,
        "prompt_tokens_details": {
            "audio_tokens": usage.prompt_audio_tokens,
            "image_tokens": usage.prompt_image_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "completion_tokens_details": {
            "audio_tokens": usage.audio_tokens,
            "text_tokens": usage.text_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        },
    }


def timeline_object(timeline: tuple[StageSpan, ...]) -> list[Json]:
    """One object a stage; times in seconds since the request was submitted."""
    return [msgspec.structs.asdict(span) for span in timeline]


def audio_object(
    deltas: list[AudioDelta], audio_format: str, audio_id: str, transcript: str, expires_at: int
) -> Json:
    """`ChatCompletionAudio` of a whole reply, in one file at the model's own rate."""
    samples = np.concatenate([delta.samples for delta in deltas])
    rate = deltas[0].sample_rate
    return {
        "id": audio_id,
        "data": to_base64(samples, rate, audio_format),
        "transcript": transcript,
        "expires_at": expires_at,
        "sample_rate": rate,
    }


def completion(
    ids: ReplyIds, text: str, reasoning: str, audio: Json | None, finished: Finished
) -> Json:
    """`ChatCompletion`: with audio the text is its transcript and `content` is null;
    `reasoning_content` is there only if the model reasoned."""
    message: Json = {
        "role": "assistant",
        "content": text if audio is None else None,
        "refusal": None,
        "audio": audio,
    }
    if reasoning:
        message["reasoning_content"] = reasoning
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finished.finish_reason,
    }
    return {
        "id": ids.completion_id,
        "object": "chat.completion",
        "created": ids.created,
        "model": ids.model,
        "choices": [choice],
        "usage": usage_object(finished.usage),
        "system_fingerprint": ids.fingerprint,
    }
