"""The protocol as it was in the beta, for clients that send `OpenAI-Beta: realtime=v1`.

Everything else speaks today's names alone: what comes in is translated before, what goes out after.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeAlias

from omni_core.errors import RequestError
from omni_server.realtime.events import SessionUpdate, TranscriptionUpdate
from omni_server.realtime.items import Json

_FORMATS: Final[dict[str, Json]] = {
    "pcm16": {"type": "audio/pcm", "rate": 24_000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
_FORMAT_NAMES: Final = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_PLACES: Final = {
    "input_audio_format": ("input", "format"),
    "input_audio_transcription": ("input", "transcription"),
    "input_audio_noise_reduction": ("input", "noise_reduction"),
    "turn_detection": ("input", "turn_detection"),
    "output_audio_format": ("output", "format"),
    "voice": ("output", "voice"),
    "speed": ("output", "speed"),
}
_EVENTS: Final = {
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}
_CONTENT: Final = {"output_text": "text", "output_audio": "audio"}


AnyUpdate: TypeAlias = SessionUpdate | TranscriptionUpdate


class Dialect(Protocol):
    """How one client speaks."""

    def settings(self, event: AnyUpdate) -> Json:
        """What it has, in today's names."""

    def response(self, asked: Json) -> Json:
        """What `response.create` has, in today's names."""

    def events(self, event: Json) -> Iterable[Json]:
        """What of a server event is sent."""


class Today:
    """The protocol as it is."""

    def settings(self, event: AnyUpdate) -> Json:
        """See `Dialect`; RequestError for what is not said any more."""
        if isinstance(event, SessionUpdate):
            return event.session
        raise RequestError(
            "transcription_session.update is session.update with 'session.type' transcription now, "
            "unless you send OpenAI-Beta: realtime=v1.",
            param="type",
            code="unsupported_event",
        )

    def response(self, asked: Json) -> Json:
        """See `Dialect`."""
        return asked

    def events(self, event: Json) -> Iterable[Json]:
        """See `Dialect`."""
        return (event,)


class Beta:
    """The protocol as it was."""

    def settings(self, event: AnyUpdate) -> Json:
        """See `Dialect`; nested settings of today may be among them."""
        changes = event.session
        if isinstance(event, SessionUpdate):
            return _nested(changes)
        spoken = {name: value for name, value in changes.items() if name != "modalities"}
        return {**_nested(spoken), "type": "transcription"}

    def response(self, asked: Json) -> Json:
        """See `Dialect`."""
        return _nested(asked)

    def events(self, event: Json) -> Iterable[Json]:
        """See `Dialect`; `conversation.item.done` had no like."""
        kind: str = event["type"]
        if kind == "conversation.item.done":
            return
        told = {**event, "type": _EVENTS.get(kind, kind)}
        writes_down = "session" in told and told["session"]["type"] == "transcription"
        if writes_down:
            told["type"] = f"transcription_{kind}"
        if "session" in told:
            told["session"] = _flat_session(told["session"])
        if "response" in told:
            told["response"] = _flat_response(told["response"])
        if "item" in told:
            told["item"] = _old_item(told["item"])
        yield told
        if kind == "session.created" and not writes_down:
            conversation = {"id": told["session"]["id"].replace("sess_", "conv_")}
            conversation["object"] = "realtime.conversation"
            yield {
                "event_id": f"{told['event_id']}_c",
                "type": "conversation.created",
                "conversation": conversation,
            }


def _nested(flat: Json) -> Json:
    nested: Json = {}
    audio: Json = {}
    for name, value in flat.items():
        if name in _PLACES:
            way, setting = _PLACES[name]
            audio.setdefault(way, {})[setting] = _format(value) if setting == "format" else value
        elif name == "modalities":
            nested["output_modalities"] = value
        elif name == "max_response_output_tokens":
            nested["max_output_tokens"] = value
        else:
            nested[name] = value
    return {**nested, "audio": audio} if audio else nested


def _format(value: Any) -> Any:
    return _FORMATS.get(value, {"type": value}) if isinstance(value, str) else value


def _flat_session(session: Json) -> Json:
    flat = {name: value for name, value in session.items() if name not in ("audio", "type")}
    for name, (way, setting) in _PLACES.items():
        heard: Json = session["audio"].get(way, {})
        if setting in heard:
            value = heard[setting]
            flat[name] = _FORMAT_NAMES[value["type"]] if setting == "format" else value
    return _old_names(flat)


def _flat_response(response: Json) -> Json:
    flat = {name: value for name, value in response.items() if name != "audio"}
    output = response["audio"]["output"]
    flat["output_audio_format"] = _FORMAT_NAMES[output["format"]["type"]]
    flat["voice"] = output["voice"]
    flat["output"] = [_old_item(item) for item in response["output"]]
    most = flat["max_output_tokens"]
    return {**_old_names(flat), "max_output_tokens": most}


def _old_names(flat: Json) -> Json:
    if "output_modalities" in flat:
        modalities = flat.pop("output_modalities")
        flat["modalities"] = ["audio", "text"] if "audio" in modalities else ["text"]
    if "max_output_tokens" in flat:
        flat["max_response_output_tokens"] = flat.pop("max_output_tokens")
    return flat


def _old_item(item: Json) -> Json:
    if "content" not in item:
        return item
    content = [{**one, "type": _CONTENT.get(one["type"], one["type"])} for one in item["content"]]
    return {**item, "content": content}
