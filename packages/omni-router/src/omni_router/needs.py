"""What a request needs of a worker, read from its path, its headers and a few fields of its body.

Pure. Everything else of a body is the worker's to judge: what cannot be read here needs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

SESSION_HEADERS: Final = ("x-session-id", "x-conversation-id")
PRIORITY_HEADER: Final = "x-priority"
LOWEST: Final = 100
"""And the highest, without the sign."""
REALTIME: Final = "/v1/realtime"
MODEL: Final = "/v1/models/"
"""Before the name of one."""
CAPABILITY_OF: Final = {
    "/v1/audio/speech": "speech",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "transcription",
    "/v1/completions": "completions",
    REALTIME: "realtime",
}
"""{path: what the model object of a worker must call true}."""
_INPUT_OF_PART: Final = {
    "input_audio": "audio",
    "audio_url": "audio",
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "input_video": "video",
}
_INPUT_OF_LIST: Final = {"audios": "audio", "images": "image", "videos": "video"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Of one request; everything absent is not needed."""

    model: str | None = None
    capability: str | None = None
    """A key of the model object's `capabilities`."""
    inputs: frozenset[str] = frozenset()
    """Modalities: text always, so it is never among them."""
    outputs: frozenset[str] = frozenset()
    session: str | None = None
    """What the client calls a conversation."""
    voice: str | None = None
    """In lower case: workers do not tell cases of voices apart."""
    names_audio: bool = False
    """A message names a spoken reply by its id, which the worker knows that gave it."""
    prefix: str | None = None
    """A digest of the messages up to the first of the user: turns of one conversation share it."""
    priority: int = 0
    """More is sooner, among those that wait."""


class _Part(msgspec.Struct):
    type: Any = None


class _Message(msgspec.Struct):
    role: Any = None
    audio: Any = None
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    """Those fields of a JSON body that decide where it goes, whatever they hold."""

    model: Any = None
    modalities: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"null")
    audio: Any = None
    voice: Any = None
    prompt_cache_key: Any = None
    conversation: Any = None
    audios: Any = None
    images: Any = None
    videos: Any = None


_bodies = msgspec.json.Decoder(_Body)
_messages = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_Part])


def of_path(path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Needs:
    """What is known before the body."""
    return Needs(
        model=query.get("model") if path == REALTIME else _model_in(path),
        capability=CAPABILITY_OF.get(path),
        session=next((headers[name] for name in SESSION_HEADERS if headers.get(name)), None),
        priority=_priority(headers.get(PRIORITY_HEADER, "")),
    )


def of_json(known: Needs, body: bytes) -> Needs:
    """With what a JSON body adds; `known` if it is none, which the worker will say."""
    try:
        read = _bodies.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return known
    messages = _messages_of(read.messages)
    return replace(
        known,
        model=_text(read.model),
        inputs=_inputs(read, messages),
        outputs=frozenset({"audio"} & set(_texts(read.modalities))),
        session=known.session or _text(read.prompt_cache_key) or _named(read.conversation),
        voice=spelled(_named(read.voice) or _named(_get(read.audio, "voice"))),
        names_audio=any(_get(message.audio, "id") for message in messages),
        prefix=_prefix(messages),
    )


def spelled(voice: str | None) -> str | None:
    """The name of a voice as it is compared."""
    return None if voice is None else voice.casefold()


def _model_in(path: str) -> str | None:
    return path.removeprefix(MODEL) or None if path.startswith(MODEL) else None


def _inputs(read: _Body, messages: list[_Message]) -> frozenset[str]:
    lists = (read.audios, read.images, read.videos)
    named = zip(_INPUT_OF_LIST.values(), lists, strict=True)
    found = {kind for kind, given in named if given}
    for message in messages:
        found.update(_kinds(message.content))
    return frozenset(found)


def _kinds(content: msgspec.Raw) -> Iterator[str]:
    try:
        parts = _parts.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return
    for part in parts:
        if isinstance(part.type, str) and part.type in _INPUT_OF_PART:
            yield _INPUT_OF_PART[part.type]


def _prefix(messages: list[_Message]) -> str | None:
    """Of the bytes as the client wrote them: what it sends again, it writes the same again."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        content = memoryview(message.content)
        digest.update(b"%d" % len(content))
        digest.update(content)
        if message.role == "user":
            return digest.hexdigest()
    return None


def _messages_of(raw: msgspec.Raw) -> list[_Message]:
    try:
        return _messages.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []


def _texts(given: Any) -> list[str]:
    return [item for item in given if isinstance(item, str)] if isinstance(given, list) else []


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) and given else None


def _get(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, dict) else None


def _named(given: Any) -> str | None:
    """A name, or the `id` of an object that has one."""
    return _text(given) or _text(_get(given, "id"))


def _priority(given: str) -> int:
    try:
        return max(-LOWEST, min(LOWEST, int(given)))
    except ValueError:
        return 0
