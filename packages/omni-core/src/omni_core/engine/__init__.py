"""AR engines: the protocol in `base`, one package per engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.errors import ConfigError

if TYPE_CHECKING:
    from omni_core.engine.base import ARRunner, Engine
    from omni_core.engine.sglang_engine.model import SglangModel, SglangRunner
    from omni_core.specs import StageContext


def build_engine(ctx: StageContext, runner: ARRunner) -> Engine:
    """The torch engine over a runner; ConfigError if `ctx` asks for another one."""
    if ctx.ar_engine != "torch":
        raise ConfigError(
            f"stage {ctx.stage.name!r}: engine {ctx.ar_engine!r} is not available for this model; "
            "use --ar-engine torch"
        )
    from omni_core.engine.torch_engine import TorchEngine, engine_config

    return TorchEngine(runner, engine_config(ctx, runner))


def build_sglang_engine(ctx: StageContext, model: SglangModel[SglangRunner]) -> Engine:
    """The engine on SGLang over a model; ConfigError for what it cannot do."""
    from omni_core.engine.sglang_engine.build import build

    return build(ctx, model)
