"""How Qwen3-Omni takes media: its sizes of pictures, videos and clips, for `MediaLoader`."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from omni_core.encoder.patches import image_grid
from omni_core.media import FrameChoice, sample_times
from omni_core.types import FloatArray, MediaOptions
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.settings import Settings
from omni_qwen3.preprocess.video import video_grid


@dataclass(frozen=True, slots=True)
class Rules:
    """`MediaRules` of one checkpoint."""

    settings: Settings
    features: AudioFeatures

    @property
    def sample_rate(self) -> int:
        """See `MediaRules`."""
        return self.features.sample_rate

    @property
    def sampling(self) -> tuple[float, int]:
        """See `MediaRules`."""
        return self.settings.video_fps, self.settings.video_max_frames

    @property
    def choose_frames(self) -> FrameChoice:
        """See `MediaRules`."""
        return sample_times

    def image_grid(self, image: Image.Image, options: MediaOptions) -> list[int]:
        """See `MediaRules`."""
        return image_grid(image, self.settings.image, options)

    def video_grid(self, shape: tuple[int, ...], options: MediaOptions) -> list[int]:
        """See `MediaRules`."""
        return video_grid(shape, self.settings.video, options)

    def check_sound(self, samples: FloatArray) -> None:
        """See `MediaRules`."""
        self.features.check(samples)
