"""Sound to log-mel frames, and how many tokens the audio encoder makes of them.

Knows float32 mono sound and clips of several lengths. Knows no prompts.
"""

from __future__ import annotations

import torch

from omni_core.errors import MediaError
from omni_core.layers.mel import LogMel
from omni_core.types import FloatArray
from omni_qwen3.preprocess.settings import AudioSettings

FRAMES_PER_CHUNK = 100
"""The encoder's convolutions see this many mel frames at a time (2 * audio_config.n_window)."""
TOKENS_PER_CHUNK = 13
SHORT_CLIP_S = 0.1
"""What clips without the length of a spectrum's window are padded to."""


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

    def __init__(self, settings: AudioSettings) -> None:
        self._log_mel = LogMel(
            bands=settings.mel_bands,
            window=settings.window,
            hop=settings.hop,
            sample_rate=settings.sample_rate,
        )
        self._hop, self._window = settings.hop, settings.window
        self.sample_rate = settings.sample_rate
        self._shortest = settings.window // 2 + 1
        """Samples that a spectrum needs: it mirrors half a window at each end."""

    def check(self, samples: FloatArray) -> None:
        """MediaError for a clip (n,) without samples."""
        if not len(samples):
            raise MediaError("the audio is empty: it decodes to no samples")

    def padded_samples(self, samples: list[int]) -> int:
        """Length to which clips of so many samples, those of one prompt, are padded with silence:
        the longest of them, as in transformers. Where that cannot make a spectrum, each is encoded
        as it would be beside `SHORT_CLIP_S` of silence."""
        longest = max(samples)
        if longest >= self._shortest:
            return longest
        return max(self._shortest, round(SHORT_CLIP_S * self.sample_rate))

    def frames(self, samples: int, padded_samples: int) -> int:
        """Mel frames of a clip that is padded with silence to the longest of its prompt."""
        # A frame counts if the clip has a sample where the frame begins to be.
        return min(-(-samples // self._hop), padded_samples // self._hop)

    def padding(self, samples: int, padded_samples: int) -> int:
        """How much of the silence after a clip shows in its frames, at most: spectra look no
        further."""
        return min(padded_samples - samples, 2 * self._window)

    def __call__(self, clips: list[FloatArray], padded_samples: int) -> list[FloatArray]:
        """Checked clips (n,) at `sample_rate` -> features (mel_bins, frames) of each.

        `padded_samples` of a prompt's clips shows in the last frames of those that are shorter.
        """
        padded = torch.zeros(len(clips), padded_samples)
        for row, clip in zip(padded, clips, strict=True):
            row[: len(clip)] = torch.from_numpy(clip)
        mel = self._log_mel(padded).numpy()
        return [
            rows[:, : self.frames(len(clip), padded_samples)]
            for rows, clip in zip(mel, clips, strict=True)
        ]
