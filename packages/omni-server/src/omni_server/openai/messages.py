"""Chat messages: OpenAI's shapes to `omni_core.types.Message`.

Knows roles, content parts and the top-level media lists. Knows nothing of sampling or models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from omni_core.errors import RequestError
from omni_core.media.limits import MediaLimits
from omni_core.types import MediaKind, MediaPart, Message, Part, Role, TextPart, ToolCall
from omni_server.openai.media import part_from_input_audio, part_from_url
from omni_server.schema.chat import (
    AudioUrlContent,
    ChatBody,
    ChatMessage,
    ContentPart,
    ImageUrlContent,
    InputAudioContent,
    MediaContent,
    MessageToolCall,
    RefusalContent,
    TextContent,
    UrlObject,
    VideoUrlContent,
)
from omni_server.schema.decode import require_shallow, short_value

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer word for the same thing
    "user": "user",
    "assistant": "assistant",
}

TranscriptLookup = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRules:
    """What turning messages into Omni's needs from the server."""

    transcript_of: TranscriptLookup
    limits: MediaLimits
    calls: bool = False
    """The model knows of calls of functions."""


def to_messages(body: ChatBody, rules: MessageRules) -> tuple[Message, ...]:
    """All messages, top-level media folded in front of the last user message."""
    if not body.messages:
        raise RequestError("'messages' is empty; send at least one user message.", param="messages")
    messages = [
        _to_message(message, f"messages[{index}]", rules)
        for index, message in enumerate(body.messages)
    ]
    _check_results(messages)
    last_user = max((i for i, m in enumerate(messages) if m.role == "user"), default=None)
    if last_user is None:
        raise RequestError("'messages' has no message with role 'user'.", param="messages")
    content = (*_top_level_media(body, rules.limits), *messages[last_user].content)
    messages[last_user] = msgspec.structs.replace(messages[last_user], content=content)
    if not any(_says_something(m) for m in messages if m.role == "user"):
        raise RequestError("The user messages have no content.", param="messages")
    return tuple(messages)


def _says_something(message: Message) -> bool:
    return any(not isinstance(part, TextPart) or part.text for part in message.content)


def _top_level_media(body: ChatBody, limits: MediaLimits) -> list[Part]:
    lists: tuple[tuple[str, MediaKind, list[str] | None], ...] = (
        ("images", "image", body.images),
        ("audios", "audio", body.audios),
        ("videos", "video", body.videos),
    )
    return [
        _named(part_from_url(kind, url, path := f"{name}[{index}]", limits), path)
        for name, kind, urls in lists
        for index, url in enumerate(urls or ())
    ]


def _named(part: MediaPart, path: str) -> MediaPart:
    """The part with its place in the body, which is what later errors about it must say."""
    return msgspec.structs.replace(part, param=path)


def _to_message(message: ChatMessage, path: str, rules: MessageRules) -> Message:
    role = _role(message, path, rules)
    calls = _earlier_calls(message, role, path, rules)
    return Message(
        role=role,
        content=_content(message, role, path, rules, calls_something=bool(calls)),
        name=message.name,
        tool_calls=calls,
        tool_call_id=_answered_call(message, role, path),
    )


def _content(
    message: ChatMessage, role: Role, path: str, rules: MessageRules, *, calls_something: bool
) -> tuple[Part, ...]:
    if role == "assistant" and message.content is None:
        if message.audio is not None:
            return (_spoken_earlier(message.audio.id, path, rules.transcript_of),)
        if message.refusal is not None:
            return (TextPart(text=message.refusal),)
        if calls_something:
            return ()
    if message.content is None:
        raise RequestError(
            f"'{path}.content' is null; write a string or a list of content parts.",
            param=f"{path}.content",
        )
    if isinstance(message.content, str):
        return (TextPart(text=message.content),)
    return tuple(
        _to_part(part, role, f"{path}.content[{index}]", rules.limits)
        for index, part in enumerate(message.content)
    )


def _earlier_calls(
    message: ChatMessage, role: Role, path: str, rules: MessageRules
) -> tuple[ToolCall, ...]:
    if short_value(message.function_call, f"{path}.function_call") is not None:
        raise RequestError(
            f"'{path}.function_call' is not supported by this server; use 'tool_calls', which "
            "replaced it.",
            param=f"{path}.function_call",
            code="unsupported_value",
        )
    if not message.tool_calls:
        return ()
    if role != "assistant" or not rules.calls:
        why = "this model knows no tools" if role == "assistant" else "only assistants call tools"
        raise RequestError(
            f"'{path}.tool_calls' is not supported here: {why}.",
            param=f"{path}.tool_calls",
            code="unsupported_value",
        )
    return tuple(
        _earlier_call(call, f"{path}.tool_calls[{index}]")
        for index, call in enumerate(message.tool_calls)
    )


def _earlier_call(call: MessageToolCall, path: str) -> ToolCall:
    if call.type != "function":
        raise RequestError(
            f"'{path}.type': {call.type!r} is not 'function'.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise RequestError(
            f"'{path}.function.arguments' is not the JSON text of an object: {exc}.",
            param=f"{path}.function.arguments",
        ) from exc
    require_shallow(arguments, f"{path}.function.arguments")
    return ToolCall(call_id=call.id, name=call.function.name, arguments=arguments)


def _answered_call(message: ChatMessage, role: Role, path: str) -> str | None:
    if role != "tool":
        return None
    if message.tool_call_id is None:
        raise RequestError(
            f"Missing required parameter: '{path}.tool_call_id'.",
            param=f"{path}.tool_call_id",
            code="missing_required_parameter",
        )
    return message.tool_call_id


def _check_results(messages: list[Message]) -> None:
    """Each result of a call must come after the call."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        called |= {call.call_id for call in message.tool_calls}
        if message.tool_call_id is not None and message.tool_call_id not in called:
            param = f"messages[{index}].tool_call_id"
            raise RequestError(
                f"'{param}': no assistant message before it has a tool call with this id.",
                param=param,
            )


def _role(message: ChatMessage, path: str, rules: MessageRules) -> Role:
    if message.role in ROLES:
        return ROLES[message.role]
    if message.role == "tool" and rules.calls:
        return "tool"
    if message.role in ("tool", "function"):
        why = "this model knows no tools" if message.role == "tool" else "use 'tool' instead"
        raise RequestError(
            f"'{path}.role': {message.role!r} is not supported here: {why}.",
            param=f"{path}.role",
            code="unsupported_value",
        )
    raise RequestError(
        f"'{path}.role': {message.role!r} is not one of {', '.join(ROLES)}.", param=f"{path}.role"
    )


def _spoken_earlier(audio_id: str, path: str, transcript_of: TranscriptLookup) -> TextPart:
    transcript = transcript_of(audio_id)
    if transcript is None:
        raise RequestError(
            f"'{path}.audio.id': {audio_id!r} is unknown here or has expired; "
            "send the transcript as 'content' instead.",
            param=f"{path}.audio.id",
        )
    return TextPart(text=transcript)


def _to_part(part: ContentPart, role: Role, path: str, limits: MediaLimits) -> Part:
    match part:
        case TextContent(text=text) | RefusalContent(refusal=text):
            return TextPart(text=text)
        case _ if role != "user":
            raise RequestError(
                f"'{path}': only user messages may carry media; a {role} message is text.",
                param=path,
            )
        case _:
            return _named(_to_media(part, path, limits), path)


def _to_media(part: MediaContent, path: str, limits: MediaLimits) -> MediaPart:
    match part:
        case InputAudioContent(input_audio=audio):
            return part_from_input_audio(audio.data, audio.format, f"{path}.input_audio", limits)
        case AudioUrlContent(audio_url=url):
            return part_from_url("audio", _url(url), f"{path}.audio_url", limits)
        case ImageUrlContent(image_url=url):
            return part_from_url("image", _url(url), f"{path}.image_url", limits)
        case VideoUrlContent(video_url=url):
            return part_from_url("video", _url(url), f"{path}.video_url", limits)
        case _:
            assert_never(part)


def _url(value: str | UrlObject) -> str:
    return value.url if isinstance(value, UrlObject) else value
