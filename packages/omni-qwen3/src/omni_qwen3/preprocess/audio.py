"""Sound to log-mel frames, and how many tokens the audio encoder makes of them.

Knows float32 mono sound and clips of several lengths. Knows no prompts.
"""

from __future__ import annotations

import torch

from omni_core.errors import MediaError
from omni_core.types import FloatArray
from omni_qwen3.preprocess.mel import LogMel
from omni_qwen3.preprocess.settings import AudioSettings

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

    def __init__(self, settings: AudioSettings) -> None:
        self._log_mel = LogMel(
            bands=settings.mel_bands,
            window=settings.window,
            hop=settings.hop,
            sample_rate=settings.sample_rate,
        )
        self._hop, self._window = settings.hop, settings.window
        self.sample_rate = settings.sample_rate
        self._min_samples = settings.window // 2 + 1

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

        All clips of a prompt are padded to its longest, as transformers does, which shows in the
        last frames of the shorter ones.
        """
        padded = torch.zeros(len(clips), padded_samples)
        for row, clip in zip(padded, clips, strict=True):
            row[: len(clip)] = torch.from_numpy(clip)
        mel = self._log_mel(padded).numpy()
        return [
            rows[:, : self.frames(len(clip), padded_samples)]
            for rows, clip in zip(mel, clips, strict=True)
        ]
