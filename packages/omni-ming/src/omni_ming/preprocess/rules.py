"""How the model takes media: its sizes of pictures, videos and clips, for `MediaLoader`."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from omni_core.encoder.patches import image_grid
from omni_core.errors import RequestError
from omni_core.media import FrameChoice
from omni_core.types import FloatArray, MediaOptions
from omni_ming.preprocess.audio import AudioFeatures
from omni_ming.preprocess.settings import VIDEO_FPS, VIDEO_MAX_FRAMES, Settings
from omni_ming.preprocess.video import choose_frames, video_grid


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
        return VIDEO_FPS, VIDEO_MAX_FRAMES

    @property
    def choose_frames(self) -> FrameChoice:
        """See `MediaRules`."""
        return choose_frames

    def image_grid(self, image: Image.Image, options: MediaOptions) -> list[int]:
        """See `MediaRules`."""
        return image_grid(image, self.settings.pictures, options)

    def video_grid(self, shape: tuple[int, ...], options: MediaOptions) -> list[int]:
        """See `MediaRules`."""
        if options.use_audio_in_video:
            raise RequestError(
                "this model does not hear a video's sound track; leave use_audio_in_video out and "
                "send the sound as an audio part",
                param="use_audio_in_video",
            )
        return video_grid(shape, self.settings.pictures, options)

    def check_sound(self, samples: FloatArray) -> None:
        """See `MediaRules`."""
        self.features.check(samples)
