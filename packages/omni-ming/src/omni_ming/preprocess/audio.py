"""Sound to log-mel frames, each clip by itself. Knows float32 mono sound, and no prompts."""

from __future__ import annotations

import torch

from omni_core.errors import MediaError
from omni_core.layers.mel import LogMel
from omni_core.types import FloatArray
from omni_ming.preprocess.settings import AudioSettings


class AudioFeatures:
    """Whisper's log-mel features, not padded to 30 s; safe to share by threads."""

    def __init__(self, settings: AudioSettings) -> None:
        self._log_mel = LogMel(
            bands=settings.mel_bands,
            window=settings.window,
            hop=settings.hop,
            sample_rate=settings.sample_rate,
        )
        self._settings = settings
        self.sample_rate = settings.sample_rate
        self._shortest = settings.window // 2 + 1
        """Samples that a spectrum needs; what shorter clips are padded to with silence."""

    def check(self, samples: FloatArray) -> None:
        """MediaError for a clip (n,) without samples, or one that the encoder has no places for."""
        if not len(samples):
            raise MediaError("the audio is empty: it decodes to no samples")
        if self.frames(len(samples)) > self._settings.max_frames:
            raise MediaError(
                f"the audio lasts {len(samples) / self.sample_rate:.1f} s; this model hears clips "
                f"of at most {self._settings.max_seconds:g} s, send it in several"
            )

    def frames(self, samples: int) -> int:
        """Mel frames of a clip of so many samples."""
        return max(samples, self._shortest) // self._settings.hop

    def __call__(self, clip: FloatArray) -> FloatArray:
        """A checked clip (n,) at `sample_rate` -> features (mel_bins, frames)."""
        padded = torch.zeros(max(len(clip), self._shortest))
        padded[: len(clip)] = torch.from_numpy(clip)
        frames: FloatArray = self._log_mel(padded[None])[0].numpy()
        return frames
