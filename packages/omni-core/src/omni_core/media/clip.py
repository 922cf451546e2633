"""A clip as a file that holds exactly its samples.

For sound that was decoded here and goes on to whoever decodes files.
"""

from __future__ import annotations

from io import BytesIO

import soundfile

from omni_core.types import FloatArray


def float_wav(samples: FloatArray, sample_rate: int) -> bytes:
    """A WAV file of float32 samples (n,)."""
    file = BytesIO()
    soundfile.write(file, samples, sample_rate, format="WAV", subtype="FLOAT")
    return file.getvalue()
