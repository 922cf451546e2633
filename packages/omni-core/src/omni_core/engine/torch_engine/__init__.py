"""The embedded AR engine: paged KV and continuous batching in plain torch."""

from omni_core.engine.torch_engine.config import TorchEngineConfig, engine_config
from omni_core.engine.torch_engine.engine import TorchEngine
from omni_core.engine.torch_engine.sampling import BatchSampler, RowSampling, make_generator

__all__ = [
    "BatchSampler",
    "RowSampling",
    "TorchEngine",
    "TorchEngineConfig",
    "engine_config",
    "make_generator",
]
