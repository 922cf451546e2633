"""Sound to log-mel frames, and how many tokens the audio encoder makes of them.

Knows float32 mono sound and transformers' WhisperFeatureExtractor. Knows no prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.errors import MediaError
from omni_core.types import FloatArray, IntArray

FRAMES_PER_CHUNK = 100
"""The encoder's convolutions see this many mel frames at a time (2 * audio_config.n_window)."""
TOKENS_PER_CHUNK = 13


def audio_tokens(frames: int) -> int:
    """Tokens the audio encoder makes of a clip of `frames` mel frames.

    13 per full chunk of 100; the rest goes through three convolutions of stride 2
    (`_get_feat_extract_output_lengths` of transformers' Qwen3-Omni).
    """
    chunks, rest = divmod(frames, FRAMES_PER_CHUNK)
    for _ in range(3):
        rest = (rest + 1) // 2
    return chunks * TOKENS_PER_CHUNK + rest


class AudioFeatures:
    """Whisper's log-mel features with the settings of one checkpoint; safe to share by threads."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from transformers import WhisperFeatureExtractor

        self._extractor = WhisperFeatureExtractor(**settings)
        self.sample_rate: int = self._extractor.sampling_rate
        self._min_samples = int(self._extractor.n_fft) // 2 + 1

    def check(self, samples: FloatArray) -> None:
        """MediaError unless a clip (n,) is long enough for one window of the spectrogram."""
        if len(samples) >= self._min_samples:
            return
        shortest_ms = 1000 * self._min_samples / self.sample_rate
        raise MediaError(
            f"the audio has {len(samples)} samples; send at least {shortest_ms:.1f} ms of sound"
            if len(samples)
            else "the audio is empty: it decodes to no samples"
        )

    def __call__(self, clips: list[FloatArray]) -> tuple[FloatArray, IntArray]:
        """Checked clips (n,) at `sample_rate` -> features (mel_bins, frames) and frames per clip.

        All clips of a prompt go through together: transformers pads them to the longest before
        the spectrogram, which shows in the last frames of the shorter ones.
        """
        features = self._extractor(
            clips,
            sampling_rate=self.sample_rate,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="np",
        )
        mask = features["attention_mask"].astype(bool)
        mel = features["input_features"].transpose(1, 0, 2)[:, mask]
        return np.ascontiguousarray(mel, dtype=np.float32), mask.sum(axis=1, dtype=np.int64)
