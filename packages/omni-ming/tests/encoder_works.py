"""Encoder stages outside a pipeline, and requests for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from omni_core.media.keys import media_key
from omni_core.scheduler.base import Work
from omni_core.specs import StageConfig, StageContext, WeightLoader
from omni_core.types import FloatArray, RequestParams
from omni_ming import encoders


def encoder_context(
    model_path: str,
    dtype: str = "float32",
    loads: Callable[[WeightLoader], None] = lambda loader: None,
    **options: Any,
) -> StageContext:
    return StageContext(
        stage=StageConfig(
            name="encoder", factory=encoders.build_image, max_batch=8, options=options
        ),
        model_path=model_path,
        device="cpu",
        dtype=dtype,
        ar_engine="torch",
        report=lambda message: None,
        loads=loads,
    )


def _items(contents: Sequence[FloatArray]) -> dict[str, Any]:
    return {
        "encoded": [None] * len(contents),
        "params": [f"messages[0].content[{item}]" for item in range(len(contents))],
        "keys": [media_key(content.tobytes(), content.shape) for content in contents],
    }


def visual_work(
    kind: str, patches: Sequence[FloatArray], grids: Sequence[Sequence[int]], request_id: str = "r"
) -> Work:
    visual = {"pixel_values": list(patches), "grid_thw": np.array(grids), **_items(patches)}
    return Work(request_id, RequestParams(), {kind: visual})


def audio_work(clips: Sequence[FloatArray], request_id: str = "r") -> Work:
    lengths = np.array([clip.shape[1] for clip in clips])
    audio = {"input_features": list(clips), "lengths": lengths, **_items(clips)}
    return Work(request_id, RequestParams(), {"audio": audio})
