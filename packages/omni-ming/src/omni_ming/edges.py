"""Where a request goes from a stage, what of its payload each target gets to see, and what those
that speak wait for.

Pure functions over payloads and request parameters. Knows stage names, no models.
"""

from __future__ import annotations

from collections.abc import Mapping

from omni_core.types import Payload, RequestParams

VOICE_ENCODER = "voice_encoder"


def route_prompt(params: RequestParams, payload: Payload) -> tuple[str, ...]:
    """Preprocessing: only the encoders this prompt has media for, and mm_aggregate always."""
    voice = (VOICE_ENCODER,) if "voice" in payload else ()
    return (*payload["routed"], *voice, "mm_aggregate")


def image_encoder_input(payload: Payload) -> Payload:
    """The images and videos."""
    return {kind: payload[kind] for kind in ("image", "video") if kind in payload}


def audio_encoder_input(payload: Payload) -> Payload:
    """The clips."""
    return {"audio": payload["audio"]}


def voice_encoder_input(payload: Payload) -> Payload:
    """The recording."""
    return {"voice": payload["voice"]}


def without_media_arrays(payload: Payload) -> Payload:
    """A `Prompt` without what only encoders read, which is nearly all of its bytes."""
    large = ("pixel_values", "input_features", "encoded", "sound", "heard")
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


def wait_for_voice(arrived: Mapping[str, Payload]) -> set[str] | None:
    """Whoever speaks: waits for a `SpeechStart`, and for the voice if that says there is one. None
    until it is here."""
    starts = set(arrived) - {VOICE_ENCODER}
    if any(arrived[name].get("cloned") for name in starts):
        return {*starts, VOICE_ENCODER}
    return starts or None


def with_voice(arrived: Mapping[str, Payload]) -> Payload:
    """A `SpeechStart` and, if it is to come, the `ClonedVoice`."""
    [start] = [payload for name, payload in arrived.items() if name != VOICE_ENCODER]
    voice = arrived.get(VOICE_ENCODER)
    return start if voice is None else {**start, "voice": voice}
