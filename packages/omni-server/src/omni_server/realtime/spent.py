"""Tokens as the protocol counts them.

Knows names. Knows nothing of who spent them.
"""

from __future__ import annotations

from omni_core.types import Usage
from omni_server.realtime.items import Json


def response_usage(usage: Usage) -> Json:
    """`RealtimeResponseUsage`; output tokens are text tokens and frames of sound."""
    counted = _usage(usage, usage.text_tokens + usage.audio_tokens)
    counted["input_token_details"] |= {
        "image_tokens": usage.prompt_image_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    counted["output_token_details"] = {
        "text_tokens": usage.text_tokens,
        "audio_tokens": usage.audio_tokens,
    }
    return counted


def transcription_usage(usage: Usage) -> Json:
    """`TranscriptTextUsageTokens`."""
    return {"type": "tokens", **_usage(usage, usage.text_tokens)}


def _usage(usage: Usage, output: int) -> Json:
    media = usage.prompt_audio_tokens + usage.prompt_image_tokens
    return {
        "total_tokens": usage.prompt_tokens + output,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens - media,
            "audio_tokens": usage.prompt_audio_tokens,
        },
    }
