"""Limits and choices of the torch engine, and where a stage's configuration sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch

from omni_core.engine.base import ARRunner
from omni_core.engine.options import ENGINE_OPTIONS, Lookahead, read_options
from omni_core.errors import ConfigError
from omni_core.specs import StageContext

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngineConfig:
    """What bounds one engine, and what it may do."""

    max_running: int = 64
    """Sequences that hold KV pages at once; more wait."""
    max_batch_tokens: int = 4096
    """Rows of one forward: all decode rows, then prompt rows up to this number."""
    prefill_chunk: int = 512
    """Most prompt rows of one forward, so that those who decode meanwhile do not stall."""
    kv_budget_bytes: int = 2 * GIB
    """Memory of the KV pool; less is taken when `max_running` longest sequences need less."""
    prefix_cache: bool = True
    """Keep KV of earlier requests for prompts that begin alike, if the runner allows it."""
    lookahead: Lookahead = "auto"
    """Launch a step before the tokens of the one before are known; auto: on CUDA devices, if the
    runner allows it."""
    coalesce_ms: float = 0.0
    """How long a lone prompt waits for company while nothing runs."""

    def __post_init__(self) -> None:
        positive = ("max_running", "max_batch_tokens", "prefill_chunk", "kv_budget_bytes")
        problems = [f"{name} must be at least 1" for name in positive if getattr(self, name) < 1]
        if self.max_batch_tokens < self.max_running:
            problems.append(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_running "
                f"({self.max_running}): every running sequence may need a row in one step"
            )
        if self.lookahead not in get_args(Lookahead):
            problems.append(f"lookahead must be auto, on or off, not {self.lookahead!r}")
        if not self.coalesce_ms >= 0:
            problems.append("coalesce_ms must be 0 or more")
        if problems:
            raise ConfigError(problems)

    def looks_ahead(self, runner: ARRunner) -> bool:
        """Whether to look ahead with this runner; ConfigError if it is told to and cannot."""
        if self.lookahead == "on" and not runner.lookahead:
            reason = "needs each token on the host before the next row"
            if runner.feedback:
                reason = "makes the next row from what it computes of the sampled token"
            raise ConfigError(f"lookahead is on, but the model {reason}; set lookahead: off")
        return runner.lookahead and (
            self.lookahead == "on" or (self.lookahead == "auto" and runner.device.type == "cuda")
        )


def engine_config(ctx: StageContext, runner: ARRunner) -> TorchEngineConfig:
    """Limits for a stage: its options with the names of `TorchEngineConfig`'s fields.

    Without `kv_budget_bytes`, a stage on a CUDA card with a `memory_fraction` gets what is left of
    its share now that the runner's weights are loaded. ConfigError for what cannot be, such as a
    prefix cache for a runner whose KV may not be shared.
    """
    values = read_options(ctx, ENGINE_OPTIONS)
    if values.get("prefix_cache") and not runner.prefix_cache:
        raise ConfigError(
            f"stage {ctx.stage.name!r}: prefix_cache is true, but this stage's KV cannot be shared "
            "between requests; leave the option out"
        )
    fraction = ctx.stage.memory_fraction
    if "kv_budget_bytes" not in values and fraction is not None and runner.device.type == "cuda":
        values["kv_budget_bytes"] = _rest_of_share(ctx, runner.device, fraction)
    config = TorchEngineConfig(**values)
    config.looks_ahead(runner)
    return config


def _rest_of_share(ctx: StageContext, device: torch.device, fraction: float) -> int:
    share = int(torch.cuda.get_device_properties(device).total_memory * fraction)
    weights = torch.cuda.memory_allocated(device)
    if weights >= share:
        raise ConfigError(
            f"stage {ctx.stage.name!r}: weights take {weights / GIB:.1f} GiB, its memory_fraction "
            f"{fraction} is {share / GIB:.1f} GiB; raise it to leave room for the KV cache"
        )
    return share - weights
