"""Whisper's log-mel spectrogram: the numbers of transformers' WhisperFeatureExtractor, bit for bit.

Knows arithmetic on padded sound. Written here because importing transformers' class takes seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

TOP_HZ = 8000.0
"""The upper edge of the highest band; Whisper's, whatever the sample rate."""
FLOOR = 1e-10
"""Smallest power before the logarithm."""
RANGE_LOG10 = 8.0
"""What lies further below the loudest point of a call is raised to this distance."""

_LINEAR_HZ_PER_MEL = 200 / 3
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _LINEAR_HZ_PER_MEL
_MELS_PER_LOG = 27 / np.log(6.4)


def mel_filters(bands: int, window: int, sample_rate: int) -> npt.NDArray[np.float64]:
    """Triangles of equal area on Slaney's mel scale, (window // 2 + 1, bands).

    Slaney's Auditory Toolbox (1998): the scale is linear below 1000 Hz and logarithmic above.
    """
    edges = _hertz(np.linspace(0.0, _mels(TOP_HZ), bands + 2))
    bins = np.linspace(0, sample_rate // 2, window // 2 + 1)
    distances = edges[None, :] - bins[:, None]
    widths = np.diff(edges)
    rising = -distances[:, :-2] / widths[:-1]
    falling = distances[:, 2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2])))


def _mels(hertz: float) -> float:
    """Slaney's mels of a frequency in the logarithmic part."""
    return float(_LOG_FROM_MEL + np.log(hertz / _LOG_FROM_HZ) * _MELS_PER_LOG)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    logarithmic = _LOG_FROM_HZ * np.exp((mels - _LOG_FROM_MEL) / _MELS_PER_LOG)
    return np.where(mels < _LOG_FROM_MEL, _LINEAR_HZ_PER_MEL * mels, logarithmic)


class LogMel:
    """Log-mel frames with one set of sizes; safe to share by threads."""

    def __init__(self, *, bands: int, window: int, hop: int, sample_rate: int) -> None:
        """`window` and `hop` in samples."""
        self._window, self._hop = window, hop
        self._hann = torch.hann_window(window)
        filters = mel_filters(bands, window, sample_rate)
        self._filters = torch.from_numpy(filters).to(torch.float32).T

    @torch.inference_mode()
    def __call__(self, sound: torch.Tensor) -> torch.Tensor:
        """float32 (clips, samples) -> float32 (clips, bands, samples // hop).

        The spectrum's last frame is dropped; log10 power is cut at 8 below each clip's loudest
        point, then shifted and scaled as Whisper was trained.
        """
        spectrum = torch.stft(
            sound, self._window, self._hop, window=self._hann, return_complex=True
        )
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        log = torch.clamp(self._filters @ power, min=FLOOR).log10()
        loudest = log.amax(dim=(1, 2), keepdim=True)
        return (torch.maximum(log, loudest - RANGE_LOG10) + 4.0) / 4.0
