"""The towers beside the authors': patches, frames and rows of the Thinker."""

from __future__ import annotations

from omni_core.specs import StageConfig, StageContext
from omni_ming import encoders


def context(model_path: str) -> StageContext:
    return StageContext(
        stage=StageConfig(name="encoder", factory=encoders.build_image),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )
