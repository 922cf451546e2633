"""The media of a request, fetched, decoded and measured, with errors that name the item.

Knows messages and omni_core.media; what an item measures is the model's (`MediaRules`). Makes no
patches, features or tokens. An item that was sent before, and is to be read as it was then, is not
decoded again: its measures are remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from PIL import Image

from omni_core.errors import RequestCancelledError, RequestError
from omni_core.media import (
    FrameChoice,
    MediaLimits,
    RequestBudget,
    SharedFetches,
    VideoClip,
    load_audio,
    load_image,
    load_video,
)
from omni_core.media.keys import media_key
from omni_core.media.patience import Stop, never
from omni_core.scheduler.cache import LRU
from omni_core.types import FloatArray, MediaKind, MediaOptions, MediaPart, Message


@dataclass(frozen=True, slots=True)
class Encoded:
    """One item as it was sent."""

    kind: MediaKind
    data: bytes
    param: str
    """What an error about it names."""
    key: bytes
    """Stands for the data and the options it is read with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All that a prompt depends on of an item."""

    grid: list[int] = field(default_factory=list)
    """[time, height, width] in patches of a picture or video, as it will be resized."""
    frames: int = 0
    """Of a video, as sampled."""
    fps: float = 0.0
    """Of a video's sampled frames."""
    samples: int = 0
    """Of a clip, or of a video's sound track with `use_audio_in_video`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item with its measures; its content is absent where only they had to be known."""

    encoded: Encoded
    measures: Measures
    image: Image.Image | None = None
    video: VideoClip | None = None
    sound: FloatArray | None = None

    @property
    def decoded(self) -> bool:
        """Whether the item's content is here."""
        return not (self.image is None and self.video is None and self.sound is None)


class MediaRules(Protocol):
    """How a model takes media."""

    @property
    def sample_rate(self) -> int:
        """Of sound, in Hz."""

    @property
    def sampling(self) -> tuple[float, int]:
        """Frames to sample of a second of video, and the most of one video, if a request does not
        say."""

    @property
    def choose_frames(self) -> FrameChoice:
        """Which frames of a video are sampled."""

    def image_grid(self, image: Image.Image, options: MediaOptions) -> list[int]:
        """[1, height, width] in patches; OmniError for a picture that cannot be."""

    def video_grid(self, shape: tuple[int, ...], options: MediaOptions) -> list[int]:
        """[time, height, width] in patches of frames of `shape` (T, height, width, 3)."""

    def check_sound(self, samples: FloatArray) -> None:
        """OmniError for a clip (n,) that cannot be encoded."""


class MediaLoader:
    """Loads and measures what messages refer to, as densely as request or checkpoint ask.

    Remembers the measures of the last `remembered` items. Safe to share by threads.
    """

    def __init__(self, rules: MediaRules, limits: MediaLimits, *, remembered: int) -> None:
        self._rules = rules
        self._limits = limits
        self._fetches = SharedFetches()
        self._measures: LRU[Measures] = LRU(max_entries=remembered)

    def fetch(
        self, messages: Sequence[Message], options: MediaOptions, stop: Stop = never
    ) -> list[Encoded]:
        """The bytes of every item, in message order; waits for the hosts of URLs, each of which is
        asked once.

        The first item that fails raises, here and in `decode`; `param` of the error is the item's
        own `param`, or else its place in the messages. Once `stop` says so, both raise
        RequestCancelledError.
        """
        found = []
        by_url: dict[str, bytes] = {}
        budget = RequestBudget(self._limits)
        for turn, message in enumerate(messages):
            for place, part in enumerate(message.content):
                if isinstance(part, MediaPart):
                    require_wanted(stop)
                    param = part.param or f"messages[{turn}].content[{place}]"
                    with blaming(param):
                        data = self._bytes_of(part, by_url, budget)
                        found.append(
                            Encoded(part.kind, data, param, self._key(part, data, options))
                        )
        return found

    def _bytes_of(self, part: MediaPart, by_url: dict[str, bytes], budget: RequestBudget) -> bytes:
        if part.data is None and part.url in by_url:
            return by_url[part.url]
        data = self._fetches.bytes_of(part, budget.fetching())
        budget.add_bytes(len(data))
        if part.url is not None:
            by_url[part.url] = data
        return data

    def recall(self, items: Sequence[Encoded]) -> list[Measures | None]:
        """What is remembered of items that need not be decoded again."""
        return [self._measures.get(item.key) for item in items]

    def decode(
        self,
        items: Sequence[Encoded],
        recalled: Sequence[Measures | None],
        options: MediaOptions,
        stop: Stop = never,
    ) -> list[Item]:
        """Decode and measure what could not be recalled."""
        decoded = []
        budget = RequestBudget(self._limits)
        for encoded, measures in zip(items, recalled, strict=True):
            if measures is not None:
                decoded.append(Item(encoded=encoded, measures=measures))
                continue
            require_wanted(stop)
            with blaming(encoded.param):
                decoded.append(item := self._decode(encoded, options, budget.decoding(), stop))
                self._spend(item, budget)
        return decoded

    def _spend(self, item: Item, budget: RequestBudget) -> None:
        if item.image is not None:
            budget.add_pixels(item.image.width * item.image.height)
        if item.video is not None:
            n_frames, height, width, _ = item.video.frames.shape
            budget.add_pixels(n_frames * height * width)
        if item.sound is not None:
            budget.add_audio(len(item.sound) / self._rules.sample_rate)

    def remember(self, items: Sequence[Item]) -> None:
        """Recall these from now on: their content is on its way to the encoders."""
        for item in items:
            if item.decoded:
                self._measures.put(item.encoded.key, item.measures)

    def stats(self) -> dict[str, float]:
        """Items that were recalled, those that were not, and how many could be now."""
        stats = self._measures.stats()
        return {name: stats[name] for name in ("cache_hits", "cache_misses", "cache_entries")}

    def sampling(self, options: MediaOptions) -> tuple[float, int]:
        """Frames to sample of a second of video, and the most of one video."""
        fps, count = self._rules.sampling
        if options.video_fps is not None:
            fps = float(options.video_fps)
        if options.video_max_frames is not None:
            count = options.video_max_frames
        return fps, min(count, self._limits.max_frames)

    def _key(self, part: MediaPart, data: bytes, options: MediaOptions) -> bytes:
        area = (options.min_pixels, options.max_pixels)
        match part.kind:
            case "image":
                return media_key(data, part.kind, *area)
            case "audio":
                return media_key(data, part.kind)
            case "video":
                sampling = (options.total_pixels, *self.sampling(options))
                return media_key(data, part.kind, *area, *sampling, options.use_audio_in_video)
            case _:
                assert_never(part.kind)

    def _decode(
        self, item: Encoded, options: MediaOptions, limits: MediaLimits, stop: Stop
    ) -> Item:
        data = item.data
        match item.kind:
            case "image":
                image = load_image(data, limits)
                grid = self._rules.image_grid(image, options)
                return Item(encoded=item, measures=Measures(grid=grid), image=image)
            case "audio":
                sound = load_audio(data, limits, sample_rate=self._rules.sample_rate, stop=stop)
                self._rules.check_sound(sound)
                return Item(encoded=item, measures=Measures(samples=len(sound)), sound=sound)
            case "video":
                return self._decode_video(item, options, limits, stop)
            case _:
                assert_never(item.kind)

    def _decode_video(
        self, item: Encoded, options: MediaOptions, limits: MediaLimits, stop: Stop
    ) -> Item:
        fps, max_frames = self.sampling(options)
        clip = load_video(
            item.data,
            limits,
            fps=fps,
            max_frames=max_frames,
            with_audio=options.use_audio_in_video,
            sample_rate=self._rules.sample_rate,
            stop=stop,
            choose=self._rules.choose_frames,
        )
        grid = self._rules.video_grid(clip.frames.shape, options)
        sound = None
        if options.use_audio_in_video:
            sound = _sound_of(clip)
            self._rules.check_sound(sound)
        measures = Measures(
            grid=grid,
            frames=len(clip.frames),
            fps=clip.fps,
            samples=0 if sound is None else len(sound),
        )
        return Item(encoded=item, measures=measures, video=clip, sound=sound)


def require_wanted(stop: Stop) -> None:
    """RequestCancelledError once nobody waits for the prompt."""
    if stop():
        raise RequestCancelledError("Nobody waits for this prompt any more.")


def _sound_of(clip: VideoClip) -> FloatArray:
    if clip.audio is None:
        raise RequestError(
            "use_audio_in_video is set, but this video has no sound track; leave the option out or "
            "send a video with sound"
        )
    return clip.audio


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """Let errors inside name the request field `param`, unless they name a better one."""
    try:
        yield
    except RequestError as error:
        error.param = error.param or param
        raise
