"""A resolved stage as the message its process is built from; every reference is checked here.

Knows how callables are named across processes. Knows no layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any, Final

from omni_core.engine.base import TORCH
from omni_core.errors import ConfigError
from omni_core.messages import StageDoc
from omni_core.specs import Ref, Resolvable, StageConfig
from omni_core.types import Modality

_AS_DECLARED: Final = (
    *("next", "stream_to", "wait_for", "terminal", "memory_fraction", "weights"),
    *("max_batch", "max_wait_ms", "max_concurrency"),
)
"""Fields of a stage that are plain data."""


def to_doc(
    stage: StageConfig,
    *,
    devices: tuple[str, ...],
    dtype: str,
    serves: Mapping[str, tuple[Modality, ...]],
) -> StageDoc:
    """A stage for the wire; every reference is resolved once here, before any process starts.

    `devices` are those of its ranks; `serves` names the modalities of the terminals behind each of
    its `next`.
    """
    checked: dict[str, Any] = {
        field: _name(stage, field, getattr(stage, field))
        for field in ("wait_for_fn", "merge_fn", "route_fn")
    }
    return StageDoc(
        name=stage.name,
        factory=_written(stage, "factory", stage.factory),  # imported in its own process only
        process=stage.process or stage.name,
        device=devices[0],
        other_devices=devices[1:],
        dtype=dtype,
        project_payload={
            target: _name(stage, "project_payload", fn) or ""
            for target, fn in stage.project_payload.items()
        },
        serves=dict(serves),
        ar_engine=stage.ar_engine or TORCH.name,
        options={name: value for name, value in stage.options.items() if value is not None},
        **checked,
        **{field: getattr(stage, field) for field in _AS_DECLARED},
    )


def _name(stage: StageConfig, field: str, value: Resolvable | None) -> str | None:
    if value is None:
        return None
    target = _written(stage, field, value)
    if not callable(Ref(target).resolve()):
        raise ConfigError(f"stage {stage.name!r}: {field} {target!r} is not callable")
    return target


def _written(stage: StageConfig, field: str, value: Resolvable) -> str:
    if isinstance(value, Ref):
        return value.target
    if isinstance(value, FunctionType | type):
        target = f"{value.__module__}:{value.__qualname__}"
        if value.__module__ != "__main__" and value.__qualname__.isidentifier():
            return target
    else:
        target = repr(value)
    raise ConfigError(
        f"stage {stage.name!r}: {field} is {target}; stages run in other processes, "
        "so name a function or class at the top level of an importable module"
    )
