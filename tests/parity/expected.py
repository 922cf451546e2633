"""The stored answers of transformers, one .npz per parity case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parent / "data"

WAV_TOLERANCE = 2e-4
"""Largest sample difference allowed in float32; text ids and codes must be equal."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One greedy reply."""

    text_ids: npt.NDArray[np.int64]
    """(n,) sampled tokens, the end token included if it came."""
    codes: npt.NDArray[np.int64]
    """(groups, frames)."""
    wav: npt.NDArray[np.float32]
    """(samples,) at 24 kHz; empty when only the end token was sampled."""


def load_reference(name: str) -> Reference:
    """The stored reply to the case of this name."""
    with np.load(DATA / f"{name}.npz") as file:
        return Reference(
            text_ids=file["text_ids"].astype(np.int64),
            codes=file["codes"].astype(np.int64),
            wav=file["wav"],
        )


def store_reference(name: str, reference: Reference) -> None:
    """Write the reply to the case of this name."""
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(
        DATA / f"{name}.npz",
        text_ids=reference.text_ids.astype(np.int32),
        codes=reference.codes.astype(np.int16),
        wav=reference.wav.astype(np.float32),
    )
