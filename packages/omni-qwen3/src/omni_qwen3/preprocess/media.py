"""The media of a request, fetched, decoded and measured, with errors that name the item.

Knows messages and omni_core.media. Makes no patches, features or tokens.
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
from omni_core.types import FloatArray, MediaKind, MediaOptions, MediaPart, Message
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.image import image_grid
from omni_qwen3.preprocess.settings import Settings
from omni_qwen3.preprocess.video import video_grid


@dataclass(frozen=True, slots=True)
class Encoded:
    """One item as it was sent."""

    kind: MediaKind
    data: bytes
    param: str
    """What an error about it names."""


@dataclass(slots=True, kw_only=True)
class Media:
    """Decoded media of one request, each kind in message order."""

    images: list[Image.Image] = field(default_factory=list)
    image_grids: list[list[int]] = field(default_factory=list)
    """[time, height, width] in patches, per image, as it will be resized."""
    image_params: list[str] = field(default_factory=list)
    """What an error about each names."""
    videos: list[VideoClip] = field(default_factory=list)
    video_grids: list[list[int]] = field(default_factory=list)
    video_params: list[str] = field(default_factory=list)
    audios: list[FloatArray] = field(default_factory=list)
    """Clips, and with `use_audio_in_video` the sound track of every video in its place."""


class MediaLoader:
    """Loads and measures what messages refer to, as densely as request or checkpoint ask."""

    def __init__(self, settings: Settings, features: AudioFeatures, limits: MediaLimits) -> None:
        self._settings = settings
        self._features = features
        self._limits = limits

    def fetch(self, messages: Sequence[Message]) -> list[Encoded]:
        """The bytes of every item, in message order; waits for the hosts of URLs.

        The first item that fails raises, here and in `decode`; `param` of the error is the item's
        own `param`, or else its place in the messages.
        """
        found = []
        for turn, message in enumerate(messages):
            for place, part in enumerate(message.content):
                if isinstance(part, MediaPart):
                    param = part.param or f"messages[{turn}].content[{place}]"
                    with _blaming(param):
                        found.append(Encoded(part.kind, media_bytes(part, self._limits), param))
        return found

    def decode(self, items: Sequence[Encoded], options: MediaOptions) -> Media:
        """Decode and measure what `fetch` gave."""
        media = Media()
        for item in items:
            with _blaming(item.param):
                self._decode(item, options, media)
        return media

    def _decode(self, item: Encoded, options: MediaOptions, media: Media) -> None:
        settings, data = self._settings, item.data
        match item.kind:
            case "image":
                image = load_image(data, self._limits)
                media.images.append(image)
                media.image_params.append(item.param)
                media.image_grids.append(image_grid(image, settings.image, options))
            case "audio":
                rate = self._features.sample_rate
                self._add_sound(load_audio(data, self._limits, sample_rate=rate), media)
            case "video":
                clip = self._video(data, options)
                media.videos.append(clip)
                media.video_params.append(item.param)
                media.video_grids.append(video_grid(clip.frames.shape, settings.video, options))
                if options.use_audio_in_video:
                    self._add_sound(_sound_of(clip), media)
            case _:
                assert_never(item.kind)

    def _add_sound(self, samples: FloatArray, media: Media) -> None:
        self._features.check(samples)
        media.audios.append(samples)

    def _video(self, data: bytes, options: MediaOptions) -> VideoClip:
        fps, count = options.video_fps, options.video_max_frames
        return load_video(
            data,
            self._limits,
            fps=self._settings.video_fps if fps is None else fps,
            max_frames=self._settings.video_max_frames if count is None else count,
            with_audio=options.use_audio_in_video,
            sample_rate=self._features.sample_rate,
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
