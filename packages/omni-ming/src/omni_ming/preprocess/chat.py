"""Messages to the pieces of a prompt, in the format the model was trained on.

The format is the authors' processor's, not that of the tokenizer's own template, which leaves out
the first sentence of the system turn. Text of a message can never become a special token. Knows no
media beyond their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from omni_core.errors import RequestError
from omni_core.types import MediaPart, Message, TextPart
from omni_ming.preprocess.pieces import Line, Picture, Piece, Sound
from omni_ming.preprocess.settings import Marks
from omni_ming.preprocess.tokenizer import TextTokenizer

FIRST_SENTENCE: Final = "你是一个友好的AI助手。"
"""What the system turn says if no message does."""
THINKING: Final = "\n\ndetailed thinking off"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSize:
    """Rows of one item in a prompt."""

    grid: tuple[int, int, int] = (0, 0, 0)
    """(times, height, width) of a picture or video, merged."""
    times: Sequence[float] = ()
    """Seconds of each pair of a video's frames."""
    tokens: int = 0
    """Of a clip."""


@dataclass(slots=True)
class _Writer:
    """Pieces so far; text waits for what it may be tokenised together with."""

    tokenizer: TextTokenizer
    pieces: list[Piece] = field(default_factory=list)
    text: str = ""

    def special(self, token_id: int) -> None:
        self.flush()
        self.pieces.append(Line((token_id,)))

    def block(self, piece: Piece) -> None:
        self.flush()
        self.pieces.append(piece)

    def flush(self) -> None:
        if self.text:
            self.pieces.append(Line(self.tokenizer.encode(self.text)))
        self.text = ""


class ChatEncoder:
    """The prompt format over the tokenizer of one checkpoint; safe to share by threads."""

    def __init__(self, tokenizer: TextTokenizer, marks: Marks) -> None:
        self._tokenizer = tokenizer
        self._marks = marks

    def encode(self, messages: Sequence[Message], sizes: Sequence[MediaSize]) -> list[Piece]:
        """The prompt up to the reply's first token; `sizes` of the media, in message order."""
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        writer, left = _Writer(self._tokenizer), iter(sizes)
        first, rest = _split_system(messages)
        self._role(writer, "SYSTEM")
        writer.text += (first or FIRST_SENTENCE) + THINKING
        writer.special(self._marks.turn_end)
        for message in rest:
            self._turn(writer, message, left)
        self._role(writer, "ASSISTANT")
        writer.flush()
        return writer.pieces

    def _turn(self, writer: _Writer, message: Message, sizes: Iterator[MediaSize]) -> None:
        if message.tool_calls:
            raise RequestError(
                "this model takes no tools, so no message can have called one", param="messages"
            )
        if message.role in ("system", "developer"):
            _text_of(message)  # which refuses media
        self._role(writer, _role_of(message))
        for part in message.content:
            if isinstance(part, TextPart):
                writer.text += part.text
            else:
                self._media(writer, part, next(sizes))
        writer.special(self._marks.turn_end)

    def _role(self, writer: _Writer, name: str) -> None:
        writer.special(self._marks.role_start)
        writer.text += name
        writer.special(self._marks.role_end)

    def _media(self, writer: _Writer, part: MediaPart, size: MediaSize) -> None:
        marks = self._marks
        match part.kind:
            case "image":
                self._picture(writer, marks.image, size)
                writer.text += "\n"
            case "audio":
                writer.special(marks.audio_start)
                writer.block(Sound(marks.audio, size.tokens))
                writer.special(marks.audio_end)
            case "video":
                writer.special(marks.video_start)
                for seconds in size.times:
                    writer.text += f"<{seconds:.1f} seconds>"
                    self._picture(writer, marks.frame, size)
                writer.special(marks.video_end)
            case _:
                assert_never(part.kind)

    def _picture(self, writer: _Writer, token: int, size: MediaSize) -> None:
        _, height, width = size.grid
        writer.special(self._marks.image_start)
        writer.block(Picture(token, height, width))
        writer.special(self._marks.image_end)


def _split_system(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """The text of the system messages that a conversation begins with, and the rest of it."""
    count = 0
    while count < len(messages) and messages[count].role in ("system", "developer"):
        count += 1
    texts = [_text_of(message) for message in messages[:count]]
    return "\n".join(text for text in texts if text), messages[count:]


def _text_of(message: Message) -> str:
    if any(isinstance(part, MediaPart) for part in message.content):
        raise RequestError(
            "this model's system turn has no place for media; send them in user messages",
            param="messages",
        )
    return "".join(part.text for part in message.content if isinstance(part, TextPart))


def _role_of(message: Message) -> str:
    match message.role:
        case "user":
            return "HUMAN"
        case "assistant":
            return "ASSISTANT"
        case "system" | "developer":
            return "SYSTEM"
        case "tool":
            raise RequestError(
                "this model takes no tools, so no message can be from one", param="messages"
            )
        case _:
            assert_never(message.role)
