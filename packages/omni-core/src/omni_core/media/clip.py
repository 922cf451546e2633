"""A clip as a file that holds exactly its samples.

For sound that was decoded here and goes on to whoever decodes files.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
import soundfile

from omni_core.types import FloatArray


def float_wav(samples: FloatArray, sample_rate: int, min_s: float = 0.0) -> bytes:
    """A WAV file of float32 samples (n,), with silence after them up to `min_s`."""
    missing = max(0, round(min_s * sample_rate) - len(samples))
    padded = np.pad(samples, (0, missing)) if missing else samples
    file = BytesIO()
    soundfile.write(file, padded, sample_rate, format="WAV", subtype="FLOAT")
    return file.getvalue()
