"""The media of a request, fetched and decoded, with errors that name the item.

Knows messages and omni_core.media. Knows nothing of patches, features or tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from PIL import Image

from omni_core.errors import RequestError
from omni_core.media import (
    MediaLimits,
    VideoClip,
    load_audio,
    load_image,
    load_video,
    media_bytes,
)
from omni_core.types import FloatArray, MediaOptions, MediaPart, Message


@dataclass(slots=True, kw_only=True)
class Media:
    """Decoded media of one request, each kind in message order."""

    images: list[Image.Image] = field(default_factory=list)
    videos: list[VideoClip] = field(default_factory=list)
    audios: list[FloatArray] = field(default_factory=list)
    """Clips, and with `use_audio_in_video` the sound track of every video in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLoader:
    """Loads what messages refer to, as densely as request or checkpoint ask."""

    limits: MediaLimits
    sample_rate: int
    default_fps: float
    default_max_frames: int

    def load(self, messages: Sequence[Message], options: MediaOptions) -> Media:
        """Fetch and decode everything, in message order.

        The first item that fails raises; `param` of the error is its place in the request.
        """
        media = Media()
        for turn, message in enumerate(messages):
            for place, part in enumerate(message.content):
                if isinstance(part, MediaPart):
                    with _blaming(f"messages[{turn}].content[{place}]"):
                        self._load(part, options, media)
        return media

    def _load(self, part: MediaPart, options: MediaOptions, media: Media) -> None:
        data = media_bytes(part, self.limits)
        match part.kind:
            case "image":
                media.images.append(load_image(data, self.limits))
            case "audio":
                media.audios.append(load_audio(data, self.limits, sample_rate=self.sample_rate))
            case "video":
                clip = self._video(data, options)
                media.videos.append(clip)
                if options.use_audio_in_video:
                    media.audios.append(_sound_of(clip))
            case _:
                assert_never(part.kind)

    def _video(self, data: bytes, options: MediaOptions) -> VideoClip:
        fps = self.default_fps if options.video_fps is None else options.video_fps
        wanted = options.video_max_frames
        return load_video(
            data,
            self.limits,
            fps=fps,
            max_frames=self.default_max_frames if wanted is None else wanted,
            with_audio=options.use_audio_in_video,
            sample_rate=self.sample_rate,
        )


def _sound_of(clip: VideoClip) -> FloatArray:
    if clip.audio is None:
        raise RequestError(
            "use_audio_in_video is set, but this video has no sound track; leave the option out or "
            "send a video with sound"
        )
    return clip.audio


@contextmanager
def _blaming(param: str) -> Iterator[None]:
    """Let errors inside name the request field `param`, unless they name a better one."""
    try:
        yield
    except RequestError as error:
        error.param = error.param or param
        raise
