"""Limits of the torch engine, and where a stage's configuration sets them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from omni_core.engine.base import ARRunner
from omni_core.errors import ConfigError
from omni_core.specs import StageContext

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngineConfig:
    """What bounds one engine."""

    max_running: int = 64
    """Sequences that hold KV pages at once; more wait."""
    max_batch_tokens: int = 4096
    """Rows of one forward: all decode rows, then prompt rows up to this number."""
    kv_budget_bytes: int = 2 * GIB
    """Memory of the KV pool; less is taken when `max_running` longest sequences need less."""

    def __post_init__(self) -> None:
        problems = [
            f"{f.name} must be at least 1" for f in fields(self) if getattr(self, f.name) < 1
        ]
        if self.max_batch_tokens < self.max_running:
            problems.append(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_running "
                f"({self.max_running}): every running sequence may need a row in one step"
            )
        if problems:
            raise ConfigError(problems)


def engine_config(ctx: StageContext, runner: ARRunner) -> TorchEngineConfig:
    """Limits for a stage: its options `max_running`, `max_batch_tokens`, `kv_budget_bytes`.

    Without `kv_budget_bytes`, a stage on a CUDA card with a `memory_fraction` gets what is left of
    its share now that the runner's weights are loaded.
    """
    values: dict[str, int] = {}
    for field in fields(TorchEngineConfig):
        if field.name in ctx.stage.options:
            values[field.name] = _integer(ctx, field.name)
    fraction = ctx.stage.memory_fraction
    if "kv_budget_bytes" not in values and fraction is not None and runner.device.type == "cuda":
        values["kv_budget_bytes"] = _rest_of_share(ctx, runner.device, fraction)
    return TorchEngineConfig(**values)


def _rest_of_share(ctx: StageContext, device: torch.device, fraction: float) -> int:
    share = int(torch.cuda.get_device_properties(device).total_memory * fraction)
    weights = torch.cuda.memory_allocated(device)
    if weights >= share:
        raise ConfigError(
            f"stage {ctx.stage.name!r}: weights take {weights / GIB:.1f} GiB, its memory_fraction "
            f"{fraction} is {share / GIB:.1f} GiB; raise it to leave room for the KV cache"
        )
    return share - weights


def _integer(ctx: StageContext, name: str) -> int:
    value = ctx.stage.options[name]
    try:
        return int(value)
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"stage {ctx.stage.name!r}: {name} must be a whole number, not {value!r}"
        ) from exc
