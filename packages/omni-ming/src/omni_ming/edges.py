"""Where a request goes from a stage, and what of its payload each target gets to see.

Pure functions over payloads and request parameters. Knows stage names, no models.
"""

from __future__ import annotations

from omni_core.types import Payload, RequestParams


def route_prompt(params: RequestParams, payload: Payload) -> tuple[str, ...]:
    """Preprocessing: only the encoders this prompt has media for, and mm_aggregate always."""
    return (*payload["routed"], "mm_aggregate")


def image_encoder_input(payload: Payload) -> Payload:
    """The images and videos."""
    return {kind: payload[kind] for kind in ("image", "video") if kind in payload}


def audio_encoder_input(payload: Payload) -> Payload:
    """The clips."""
    return {"audio": payload["audio"]}


def without_media_arrays(payload: Payload) -> Payload:
    """A `Prompt` without what only encoders read, which is nearly all of its bytes."""
    large = ("pixel_values", "input_features", "encoded")
    return {
        key: {name: part for name, part in value.items() if name not in large}
        if isinstance(value, dict)
        else value
        for key, value in payload.items()
    }


def route_spoken_whole(params: RequestParams, payload: Payload) -> tuple[str, ...]:
    """Thinker before talker: decode always, speech only when audio is asked for."""
    return ("decode", "talker") if "audio" in params.modalities else ("decode",)


def route_spoken_streaming(params: RequestParams, payload: Payload) -> tuple[str, ...]:
    """Thinker before segmenter: the same."""
    return ("decode", "segmenter") if "audio" in params.modalities else ("decode",)
