"""What a chat call answers with: the completion object and its parts.

Shapes follow `ChatCompletion` of the openai package. Extensions, marked
where they are made: `sample_rate` and `finish_reason` beside audio data, `timeline`, and finer
token details.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import msgspec
import numpy as np

from omni_core.media.encode import encode_audio
from omni_core.types import AudioDelta, FinishReason, StageSpan, ToolCallDelta, Usage
from omni_server.enclosed import Enclosed

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyIds:
    """What every object of one reply repeats."""

    model: str
    fingerprint: str
    completion_id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    audio_id: str = field(default_factory=lambda: f"audio_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def audio_id_of(self, choice: int) -> str:
        """The id of a choice's audio."""
        return f"{self.audio_id}_{choice}" if choice else self.audio_id


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
        "data": Enclosed(encode_audio(samples, rate, audio_format)),
        "transcript": transcript,
        "expires_at": expires_at,
        "sample_rate": rate,
    }


def tool_call_object(deltas: list[ToolCallDelta]) -> Json:
    """`ChatCompletionMessageFunctionToolCall` of one call."""
    arguments = "".join(delta.arguments for delta in deltas)
    return {
        "id": deltas[0].call_id,
        "type": "function",
        "function": {"name": deltas[0].name, "arguments": arguments},
    }


def choice_object(
    index: int,
    text: str,
    reasoning: str,
    audio: Json | None,
    calls: list[Json],
    finish_reason: FinishReason,
) -> Json:
    """`Choice`: with audio the text is its transcript and `content` is null, as it is where calls
    are all there is. `reasoning_content` and `tool_calls` are there only if there are any."""
    spoken_or_called = audio is not None or (calls and not text)
    message: Json = {
        "role": "assistant",
        "content": None if spoken_or_called else text,
        "refusal": None,
        "audio": audio,
    }
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}


def usage_of_choices(usages: Iterable[Usage]) -> Usage:
    """Of a whole reply."""
    return reduce(with_choice, usages)


def with_choice(reply: Usage, choice: Usage) -> Usage:
    """Of a reply with one choice more: the prompt is counted once, whatever becomes of it."""
    return reply + Usage(
        text_tokens=choice.text_tokens,
        reasoning_tokens=choice.reasoning_tokens,
        audio_tokens=choice.audio_tokens,
    )


def completion(ids: ReplyIds, choices: list[Json], usage: Usage) -> Json:
    """`ChatCompletion`."""
    return {
        "id": ids.completion_id,
        "object": "chat.completion",
        "created": ids.created,
        "model": ids.model,
        "choices": choices,
        "usage": usage_object(usage),
        "system_fingerprint": ids.fingerprint,
    }
