"""Limits and choices of the engine on SGLang, and where a stage's configuration sets them.

Options have the names they have for the torch engine. What upstream cannot honour is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from omni_core.engine.base import KVSpec
from omni_core.engine.options import ENGINE_OPTIONS, Lookahead, read_options
from omni_core.engine.sglang_engine.model import SglangRunner
from omni_core.errors import ConfigError
from omni_core.specs import StageContext

GIB = 1024**3
PAGE_SIZE = 16
"""Tokens in a page of KV."""
SPARE_PAGES = 2
"""Upstream admits a request only if there is room for a page more than it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangEngineConfig:
    """What bounds one engine, and what it may do."""

    max_running: int = 64
    """Sequences that are with upstream at once; more wait."""
    max_batch_tokens: int = 4096
    """Rows of the prompts of one forward."""
    prefill_chunk: int = 512
    """Most prompt rows of one forward, in whole pages."""
    kv_budget_bytes: int | None = None
    """Memory of the KV pool, on each rank; less is taken when `max_running` longest sequences need
    less. None: what `memory_fraction` leaves beside the weights."""
    memory_fraction: float | None = None
    """Share of the card's memory for weights and KV."""
    prefix_cache: bool = True
    """Keep KV of earlier requests for prompts that begin alike, if the runner allows it."""
    looks_ahead: bool = False
    """Launch a decode step before the tokens of the one before are known."""

    def __post_init__(self) -> None:
        positive = {
            "max_running": self.max_running,
            "max_batch_tokens": self.max_batch_tokens,
            "prefill_chunk": self.prefill_chunk,
            "kv_budget_bytes": self.kv_budget_bytes,
        }
        problems = [
            f"{name} must be at least 1"
            for name, value in positive.items()
            if value is not None and value < 1
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def chunk_rows(self) -> int:
        """`prefill_chunk` in whole pages, at least one."""
        return max(self.prefill_chunk // PAGE_SIZE, 1) * PAGE_SIZE

    def kv_tokens(self, kv: KVSpec, itemsize: int, *, ranks: int = 1) -> int | None:
        """Tokens of the KV pool, `SPARE_PAGES` apart, of a model split over so many ranks;
        ConfigError if not a page fits. None: as many as fit."""
        if self.kv_budget_bytes is None:
            return None
        heads = max(kv.kv_heads // ranks, 1)
        page_bytes = 2 * kv.layers * heads * kv.head_dim * itemsize * PAGE_SIZE
        pages = min(self.kv_budget_bytes // page_bytes, self.max_running * pages_for(kv.max_len))
        if pages < 1:
            raise ConfigError(
                f"kv_budget_bytes ({self.kv_budget_bytes}) is less than a page of KV needs "
                f"({page_bytes}); raise it"
            )
        return pages * PAGE_SIZE


def pages_for(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE_SIZE)


def engine_config(ctx: StageContext, runner: SglangRunner) -> SglangEngineConfig:
    """Limits for a stage; ConfigError for what cannot be."""
    values = read_options(ctx, ENGINE_OPTIONS)
    name = f"stage {ctx.stage.name!r}"
    lookahead = values.pop("lookahead", "auto")
    if lookahead not in get_args(Lookahead):
        raise ConfigError(f"{name}: lookahead must be auto, on or off, not {lookahead!r}")
    if lookahead == "on" and runner.feedback:
        raise ConfigError(
            f"{name}: lookahead is on, but the model makes the next row from what it computes of "
            "the sampled token; set lookahead: off"
        )
    values["looks_ahead"] = lookahead == "on"
    if values.pop("coalesce_ms", 0):
        raise ConfigError(
            f"{name}: coalesce_ms is set, but this engine holds no prompt for company; leave the "
            "option out, or set --ar-engine torch"
        )
    if values.get("prefix_cache") and not runner.prefix_cache:
        raise ConfigError(
            f"{name}: prefix_cache is true, but this stage's KV cannot be shared between requests; "
            "leave the option out"
        )
    if "kv_budget_bytes" not in values:
        on_card = ctx.device.startswith("cuda") and ctx.stage.memory_fraction is not None
        values["kv_budget_bytes"] = None if on_card else 2 * GIB
    return SglangEngineConfig(**values, memory_fraction=ctx.stage.memory_fraction)
