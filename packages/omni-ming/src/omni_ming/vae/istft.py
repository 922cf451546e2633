"""Spectra to sound: inverse short-time Fourier transform with overlap of four, whole or in pieces.

A piece is exact: what later frames will still add to is held back, sound and window apart, and the
sum is divided by that of the squared windows once it is complete (Griffin and Lim, 1984).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

OVERLAP = 4
"""Frames that a sample is made of; a transform is so many hops long."""
LOUDEST = 100.0
"""Magnitudes are cut here."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What the frames so far have begun and later ones complete, (B, 3 * hop) each."""

    sound: torch.Tensor
    windows: torch.Tensor


@dataclass(frozen=True, slots=True)
class InverseStft:
    """With one hop and window."""

    hop: int
    window: torch.Tensor
    """(4 * hop,): Hann's."""

    @classmethod
    def of(cls, hop: int, device: torch.device) -> InverseStft:
        """In float32."""
        return cls(hop, torch.hann_window(OVERLAP * hop).to(device))

    @property
    def cut(self) -> int:
        """Samples to drop at the begin and at the end of a sound, so that it has its own length."""
        return (OVERLAP - 1) * self.hop // 2

    def begin(self, batch: int) -> Tail:
        """Of sounds that begin."""
        nothing = self.window.new_zeros(batch, (OVERLAP - 1) * self.hop)
        return Tail(nothing, nothing.clone())

    def __call__(self, spectrum: torch.Tensor, tail: Tail) -> tuple[torch.Tensor, Tail]:
        """Frames (B, n, 2 * (2 * hop + 1)) of log-magnitudes and phases to the samples (B, n * hop)
        that are complete now, and what is not."""
        magnitude, phase = spectrum.float().chunk(2, dim=-1)
        magnitude = magnitude.exp().clamp(max=LOUDEST)
        pieces = torch.fft.irfft(
            torch.polar(magnitude, phase), n=OVERLAP * self.hop, norm="backward"
        )
        sound = self._added(pieces * self.window, tail.sound)
        squares = (self.window**2).expand(*pieces.shape)
        windows = self._added(squares, tail.windows)
        done = pieces.shape[1] * self.hop
        complete = sound[:, :done] / windows[:, :done]
        return complete, Tail(sound[:, done:], windows[:, done:])

    def finish(self, tail: Tail) -> torch.Tensor:
        """The samples (B, 3 * hop) that no frame comes to complete any more."""
        return tail.sound / tail.windows

    def _added(self, pieces: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
        """Pieces (B, n, 4 * hop), a hop apart, one over the other and over the tail."""
        batch, count, _ = pieces.shape
        out = pieces.new_zeros(batch, (count + OVERLAP - 1) * self.hop)
        out[:, : tail.shape[1]] = tail
        for part in range(OVERLAP):
            begin = part * self.hop
            rows = pieces[:, :, begin : begin + self.hop].reshape(batch, count * self.hop)
            out[:, begin : begin + count * self.hop] += rows
        return out
