"""Items that clients write: the protocol's objects to `items`.

Knows names, types and which content each role may have, in the names of today and of the beta.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from omni_core.errors import MediaError, RequestError
from omni_core.media.limits import MediaLimits
from omni_core.specs import ModelInfo
from omni_server.openai.media import part_from_url
from omni_server.realtime.events import Id
from omni_server.realtime.formats import AudioFormat, PcmDecoder, decode_audio
from omni_server.realtime.items import (
    CallItem,
    Content,
    Image,
    Item,
    Json,
    MessageItem,
    ResultItem,
    Sound,
    Speaker,
    Spoken,
    Written,
    new_id,
)
from omni_server.realtime.settings import MOST_CHARACTERS
from omni_server.schema.decode import convert_field, decode_json

MOST_CONTENT_PARTS: Final = 64
_SPEAKERS: Final[dict[str, Speaker]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class _Content(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None


class _Item(msgspec.Struct, kw_only=True):
    type: str
    id: Id | None = None
    role: str = ""
    content: list[_Content] = []
    name: str | None = None
    call_id: Id | None = None
    arguments: str | None = None
    output: str | None = None

    @property
    def characters(self) -> int:
        """Of all text but base64."""
        texts = [self.name, self.arguments, self.output]
        texts += [text for one in self.content for text in (one.text, one.transcript)]
        return sum(len(text) for text in texts if text)


def parse_item(
    written: Json, path: str, *, info: ModelInfo, limits: MediaLimits, audio_format: AudioFormat
) -> Item:
    """The item that a client writes at `path`; RequestError names the field at fault."""
    asked = convert_field(written, _Item, path)
    if asked.characters > MOST_CHARACTERS:
        raise _wrong(path, f"has over {MOST_CHARACTERS} characters of text; send less")
    item_id = asked.id or new_id("item")
    match asked.type:
        case "message":
            parser = _MessageParser(info, limits, audio_format)
            return parser.message(asked, item_id, path)
        case "function_call":
            arguments = _given(asked.arguments, f"{path}.arguments")
            if not isinstance(decode_json(arguments or "{}", f"{path}.arguments"), dict):
                raise _wrong(f"{path}.arguments", "is not the JSON text of an object")
            return CallItem(
                id=item_id,
                name=_given(asked.name, f"{path}.name"),
                call_id=asked.call_id or new_id("call"),
                arguments=arguments,
            )
        case "function_call_output":
            return ResultItem(
                id=item_id,
                call_id=_given(asked.call_id, f"{path}.call_id"),
                output=_given(asked.output, f"{path}.output"),
            )
    raise _wrong(
        f"{path}.type",
        f"{asked.type[:64]!r} is not one of message, function_call, function_call_output",
    )


class _MessageParser:
    def __init__(self, info: ModelInfo, limits: MediaLimits, audio_format: AudioFormat) -> None:
        self._info, self._limits, self._format = info, limits, audio_format

    def message(self, asked: _Item, item_id: str, path: str) -> MessageItem:
        speaker = _SPEAKERS.get(asked.role)
        if speaker is None:
            known = ", ".join(_SPEAKERS)
            raise _wrong(f"{path}.role", f"{asked.role[:64]!r} is not one of {known}")
        if not 0 < len(asked.content) <= MOST_CONTENT_PARTS:
            raise _wrong(f"{path}.content", f"has from 1 to {MOST_CONTENT_PARTS} parts")
        content = [
            self._content(part, speaker, f"{path}.content[{index}]")
            for index, part in enumerate(asked.content)
        ]
        return MessageItem(id=item_id, speaker=speaker, content=content)

    def _content(self, part: _Content, speaker: Speaker, path: str) -> Content:
        match part.type, speaker:
            case ("input_text" | "text", "user" | "system") | ("output_text" | "text", "assistant"):
                return Written(_given(part.text, f"{path}.text"))
            case (("output_audio" | "audio"), "assistant"):
                return Spoken(said=_given(part.transcript, f"{path}.transcript"), is_whole=True)
            case (("input_audio" | "audio"), "user"):
                return self._sound(part, path)
            case "input_image", "user":
                return self._image(part, path)
        raise _wrong(f"{path}.type", f"{part.type[:64]!r} is nothing that a {speaker} message has")

    def _sound(self, part: _Content, path: str) -> Content:
        """Without its sound, what was said: clients restore conversations like that."""
        if part.audio is None:
            return Written(_given(part.transcript, f"{path}.audio"))
        self._require("audio", path)
        samples = PcmDecoder(self._format).push(decode_audio(part.audio, f"{path}.audio"))
        if not samples.size:
            raise _wrong(f"{path}.audio", "holds no samples")
        return Sound.of(samples, self._format.rate, part.transcript)

    def _image(self, part: _Content, path: str) -> Content:
        self._require("image", path)
        url = _given(part.image_url, f"{path}.image_url")
        media = part_from_url("image", url, f"{path}.image_url", self._limits)
        return Image(msgspec.structs.replace(media, param=f"{path}.image_url"))

    def _require(self, modality: str, path: str) -> None:
        if modality not in self._info.input_modalities:
            takes = ", ".join(self._info.input_modalities)
            raise MediaError(
                f"'{path}': the served model takes no {modality}; it takes {takes}.",
                param=path,
                code="unsupported_value",
            )


def _given(value: Any, param: str) -> str:
    if value is None:
        raise RequestError(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    return str(value)


def _wrong(param: str, why: str) -> RequestError:
    return RequestError(f"'{param}' {why}.", param=param)
