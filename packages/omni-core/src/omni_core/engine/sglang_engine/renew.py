"""New weights in an engine that runs: upstream loads its module again, the model package the rest.

Knows the order of it. Knows neither upstream nor any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from omni_core.engine.sglang_engine.model import SglangModel, SglangRunner
from omni_core.engine.sglang_engine.view import part_of
from omni_core.specs import WeightLoader

if TYPE_CHECKING:
    from omni_core.engine.sglang_engine.engine import SglangEngine


@dataclass(frozen=True, slots=True)
class SglangWeights:
    """`WeightLoader` of a stage on this engine."""

    engine: SglangEngine
    model: SglangModel[SglangRunner]
    own: WeightLoader
    """`SglangModel.weights`."""
    device: str

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        self.own.check(model_path)

    def load(self, model_path: str) -> None:
        """See `WeightLoader`."""
        if self.device != "cpu":
            torch.cuda.set_device(self.device)  # this thread may be new, and upstream goes by it
        described = {**self.model.config, "architectures": [self.model.module.__name__]}
        try:
            with part_of(model_path, described, self.model.tensors) as directory:
                self.engine.load_weights(directory)
            self.own.load(model_path)
        finally:
            self.engine.forget_prefixes()
