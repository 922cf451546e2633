from __future__ import annotations
from dataclasses import dataclass
import numpy as np
import numpy.typing as npt
FRAME_S = 0.02
Levels = npt.NDArray[np.float64]

@dataclass(frozen=True, slots=True)
class Segment:
    start: int
    stop: int

def split_at_pauses(samples: FloatArray, sample_rate: int, *, min_s: float, max_s: float, min_pause_s: float=0.2) -> list[Segment]:
    ...

def frame_levels(samples: FloatArray, frame: int) -> Levels:
    ...
