"""Reading media a second time, for an encoder that no longer has what it once made of them.

Knows that preprocessing has let each item through before, under the operator's limits, and with
which measures. Tells nothing but whether the file can still be read.
"""

from __future__ import annotations

from functools import cached_property

from omni_core.encoder.patches import image_patches
from omni_core.media import LET_THROUGH, load_audio, load_image, load_video
from omni_core.types import ByteArray, FloatArray
from omni_ming.preprocess.audio import AudioFeatures
from omni_ming.preprocess.settings import Settings, load_settings
from omni_ming.preprocess.video import choose_frames, video_patches


class MediaAgain:
    """Files to the arrays preprocessing made of them; reads a checkpoint's settings when first
    needed, which may be never."""

    def __init__(self, model_path: str) -> None:
        self._model_path = model_path

    def image(self, encoded: ByteArray, grid: list[int]) -> FloatArray:
        """Patches (P, 3 * temporal_patch * patch * patch) of a picture."""
        picture = load_image(encoded.tobytes(), LET_THROUGH)
        return image_patches(picture, grid, self._settings.pictures)

    def video(self, encoded: ByteArray, grid: list[int], fps: float, max_frames: int) -> FloatArray:
        """Patches (P, 3 * temporal_patch * patch * patch) of a video sampled as before."""
        clip = load_video(
            encoded.tobytes(),
            LET_THROUGH,
            fps=fps,
            max_frames=max_frames,
            with_audio=False,
            choose=choose_frames,
        )
        return video_patches(clip.frames, grid, self._settings.pictures)

    def sound(self, encoded: ByteArray) -> FloatArray:
        """Mel frames (mel_bins, frames) of a clip."""
        rate = self._features.sample_rate
        return self._features(load_audio(encoded.tobytes(), LET_THROUGH, sample_rate=rate))

    @cached_property
    def _settings(self) -> Settings:
        return load_settings(self._model_path)

    @cached_property
    def _features(self) -> AudioFeatures:
        return AudioFeatures(self._settings.audio)
