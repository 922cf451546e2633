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
from omni_core.engine.sglang_engine.followers import Followers
from omni_core.engine.sglang_engine.journal import Journal, LeadingEngine
from omni_core.engine.sglang_engine.model import SglangModel, SglangRunner
from omni_core.engine.sglang_engine.renew import SglangWeights
from omni_core.engine.sglang_engine.split import Split, meeting_place
from omni_core.engine.sglang_engine.view import part_of
from omni_core.errors import ConfigError
from omni_core.specs import StageContext

if TYPE_CHECKING:
    from omni_core.engine.base import Engine
    from omni_core.engine.sglang_engine.engine import SglangEngine
    from omni_core.engine.sglang_engine.upstream import InProcessScheduler, Settings


def build(ctx: StageContext, model: SglangModel[SglangRunner]) -> Engine:
    """The engine of this process, of which there can be one; ConfigError for what cannot be. Where
    the model is split, with processes for its other ranks."""
    if ctx.stage.tp_size == 1:
        engine = build_rank(ctx, model)
        if model.weights is not None:
            ctx.loads(SglangWeights(engine, model, model.weights, ctx.device))
        return engine
    if model.load is None or model.runner.feedback:
        raise ConfigError(
            f"stage {ctx.stage.name!r}: tp_size is {ctx.stage.tp_size} but the model of this stage "
            "cannot be split; set it to 1"
        )
    split = Split(ranks=ctx.stage.tp_size, rank=0, meeting=meeting_place())
    followers = Followers(ctx, model.load, split.meeting)
    first = build_rank(ctx, model, split)
    return LeadingEngine(first, Journal(followers.pipes), followers.cause)


def build_rank(
    ctx: StageContext, model: SglangModel[SglangRunner], split: Split | None = None
) -> SglangEngine:
    """The engine of one rank: all of them load the model together."""
    availability.require(ctx.ar_engine, ctx.stage.name, ctx.device)
    config = engine_config(ctx, model.runner)
    scheduler = load_scheduler(ctx, config, model, split)
    from omni_core.engine.sglang_engine.engine import SglangEngine

    return SglangEngine(scheduler, model.runner, config)


def load_scheduler(
    ctx: StageContext,
    config: SglangEngineConfig,
    model: SglangModel[SglangRunner],
    split: Split | None = None,
) -> InProcessScheduler:
    """Upstream's scheduler, with the model in it, or a rank's part of that."""
    bootstrap.prepare()
    if split is not None:
        split.prepare()
    from omni_core.engine.sglang_engine.upstream import build_scheduler

    described = {**model.config, "architectures": [model.module.__name__]}
    ctx.report("loading weights")
    with part_of(ctx.model_path, described, model.tensors) as directory:
        settings = _settings(ctx, config, model, directory)
        return build_scheduler(settings, model.module, rank=0 if split is None else split.rank)


def _settings(
    ctx: StageContext, config: SglangEngineConfig, model: SglangModel[SglangRunner], directory: str
) -> Settings:
    from omni_core.engine.sglang_engine.upstream import Settings

    kv = model.runner.kv
    itemsize = getattr(torch, ctx.dtype).itemsize
    tokens = config.kv_tokens(kv, itemsize, ranks=ctx.stage.tp_size)
    return Settings(
        model_path=directory,
        device=ctx.device,
        ranks=ctx.stage.tp_size,
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
