"""From a stage's context and a model's description to a running engine.

The only way in: `bootstrap` comes before anything that imports upstream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from omni_core.engine import availability
from omni_core.engine.sglang_engine import bootstrap
from omni_core.engine.sglang_engine.config import (
    PAGE_SIZE,
    SPARE_PAGES,
    SglangEngineConfig,
    engine_config,
)
from omni_core.engine.sglang_engine.model import SglangModel, SglangRunner
from omni_core.engine.sglang_engine.view import part_of
from omni_core.specs import StageContext

if TYPE_CHECKING:
    from omni_core.engine.sglang_engine.engine import SglangEngine
    from omni_core.engine.sglang_engine.upstream import InProcessScheduler, Settings


def build(ctx: StageContext, model: SglangModel[SglangRunner]) -> SglangEngine:
    """The engine of this process, of which there can be one; ConfigError for what cannot be."""
    availability.require(ctx.ar_engine, ctx.stage.name, ctx.device)
    config = engine_config(ctx, model.runner)
    scheduler = load_scheduler(ctx, config, model)
    from omni_core.engine.sglang_engine.engine import SglangEngine

    return SglangEngine(scheduler, model.runner, config)


def load_scheduler(
    ctx: StageContext, config: SglangEngineConfig, model: SglangModel[SglangRunner]
) -> InProcessScheduler:
    """Upstream's scheduler, with the model in it."""
    bootstrap.prepare()
    from omni_core.engine.sglang_engine.upstream import build_scheduler

    described = {**model.config, "architectures": [model.module.__name__]}
    ctx.report("loading weights")
    with part_of(ctx.model_path, described, model.tensors) as directory:
        return build_scheduler(_settings(ctx, config, model, directory), model.module)


def _settings(
    ctx: StageContext, config: SglangEngineConfig, model: SglangModel[SglangRunner], directory: str
) -> Settings:
    from omni_core.engine.sglang_engine.upstream import Settings

    kv = model.runner.kv
    itemsize = getattr(torch, ctx.dtype).itemsize
    tokens = config.kv_tokens(kv, itemsize)
    return Settings(
        model_path=directory,
        device=ctx.device,
        dtype=ctx.dtype,
        max_running=config.max_running,
        prefill_chunk=config.chunk_rows,
        max_batch_tokens=config.max_batch_tokens,
        page_size=PAGE_SIZE,
        kv_tokens=tokens and tokens + SPARE_PAGES * PAGE_SIZE,
        memory_fraction=config.memory_fraction,
        looks_ahead=config.looks_ahead,
        prefix_cache=config.prefix_cache and model.runner.prefix_cache,
        context_length=kv.max_len,
    )
