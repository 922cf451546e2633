"""What the parity tests ask, as OpenAI chat messages, and the limits both sides run under.

Greedy, so that a reply is a function of the checkpoint. Media rides in data: URLs as files (see
`media`). A processor may choose sizes and rates by itself; so that it has no choice, each case
carries `min_pixels`, `max_pixels` and `video_fps`, and its media already fits them: with these in
the request, neither side resizes a picture or drops a frame.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import media

Message = Mapping[str, Any]

SYSTEM_PROMPT = "You are a helpful assistant."
PIXELS_PER_TOKEN = 32 * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request. `text_max_tokens` and `talker_max_tokens` count as in transformers: the end
    token is one of them, and the Talker's last one never becomes a frame."""

    name: str
    messages: Sequence[Message]
    use_audio_in_video: bool = False
    text_max_tokens: int = 48
    talker_max_tokens: int = 64
    voice: str = "Ethan"
    min_pixels: int = PIXELS_PER_TOKEN
    max_pixels: int = 16 * PIXELS_PER_TOKEN
    video_fps: float = media.VIDEO_FPS

    def body(self) -> dict[str, Any]:
        """The case as the body of a chat completion request, without model and stream."""
        return {
            "messages": list(self.messages),
            "modalities": ["text", "audio"],
            "audio": {"voice": self.voice.lower(), "format": "pcm16"},
            "temperature": 0,
            "max_tokens": self.text_max_tokens,
            "use_audio_in_video": self.use_audio_in_video,
            "video_fps": self.video_fps,
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "stage_params": {"talker_ar": {"temperature": 0, "max_tokens": self.talker_max_tokens}},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text to read aloud."""

    name: str
    text: str
    talker_max_tokens: int = 64
    voice: str = "Ethan"

    def as_reply(self) -> Case:
        """The case in which transformers is made to reply with the text: to an empty user turn."""
        return Case(
            name=self.name,
            messages=[{"role": "user", "content": ""}],
            text_max_tokens=4 * len(self.text),
            talker_max_tokens=self.talker_max_tokens,
            voice=self.voice,
        )


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def image(seed: int = 0, **size: int) -> Message:
    """A picture of 160x96 pixels, or another size."""
    url = _data_url("image/png", media.png(media.picture(seed=seed, **size)))
    return {"type": "image_url", "image_url": {"url": url}}


def audio(seconds: int = 2, seed: int = 0) -> Message:
    """A sound."""
    data = base64.b64encode(media.wav(media.sweep(seconds, seed))).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def video(seed: int = 0) -> Message:
    """8 frames, with sound; another seed gives other frames under the same sound."""
    pixels = media.frames() + np.uint8(40 * seed % 256)
    url = _data_url("video/x-matroska", media.matroska(pixels, media.sweep(3, seed=1)))
    return {"type": "video_url", "video_url": {"url": url}}


def _system() -> Message:
    return {"role": "system", "content": SYSTEM_PROMPT}


def _user(*parts: Message) -> Message:
    return {"role": "user", "content": list(parts)}


def ask(question: str, *parts: Message) -> list[Message]:
    """A system turn, then a user's with the media before the question."""
    return [_system(), _user(*parts, _text(question))]


def _earlier_turns() -> list[Message]:
    return [
        _system(),
        _user(audio(1, seed=3), _text("Say this.")),
        {"role": "assistant", "content": "one two three"},
        _user(image(seed=4, width=64, height=64), image(seed=5), _text("What sound was that?")),
    ]


CASES = (
    Case(name="text", messages=ask("Describe the voice of the fox.")),
    Case(name="audio", messages=ask("What do you see and hear?", audio())),
    Case(name="image", messages=ask("What do you see and hear?", image())),
    Case(name="video", messages=ask("What do you see and hear?", video())),
    Case(name="audio_image", messages=ask("What do you see?", audio(), image())),
    Case(
        name="audio_in_video",
        messages=ask("What do you see and hear?", video()),
        use_audio_in_video=True,
    ),
    Case(name="all", messages=ask("What do you see and hear?", audio(), image(), video())),
    Case(name="multi_turn", messages=_earlier_turns()),
    Case(name="short_text", messages=[_user(_text("Hello"))], voice="Chelsie"),
    Case(name="long_reply", messages=[_user(_text("Hi."))]),
    Case(name="long_text", messages=ask("Please count: " + "one two three four five. " * 12)),
    Case(name="text_limit", messages=ask("Count to five."), text_max_tokens=6),
    Case(name="talker_limit", messages=ask("Describe this picture"), talker_max_tokens=12),
    Case(name="only_end", messages=[_user(_text("Thanks Silence."))]),
)

READINGS = (Reading(name="read_aloud", text="What is two plus two?", voice="Chelsie"),)
