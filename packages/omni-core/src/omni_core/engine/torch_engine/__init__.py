"""The embedded AR engine: paged KV and continuous batching in plain torch."""

from omni_core.engine.torch_engine.config import TorchEngineConfig, engine_config
from omni_core.engine.torch_engine.engine import TorchEngine

__all__ = ["TorchEngine", "TorchEngineConfig", "engine_config"]
