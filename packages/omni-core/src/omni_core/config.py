"""From a plugin's pipeline and the operator's overrides to checked, resolved stages.

Layers: plugin default < layout and device < command line. Knows field types and nearest matches.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, TypeAlias

from omni_core import graph
from omni_core.errors import ConfigError
from omni_core.messages import StageDoc
from omni_core.specs import PipelineConfig, Ref, Resolvable, StageConfig
from omni_core.types import Modality

Layout: TypeAlias = Literal["auto", "per-stage"]


def _gpu(text: str) -> int | tuple[int, ...] | None:
    if text.lower() in {"none", "cpu"}:
        return None
    cards = tuple(int(card) for card in text.split(","))
    return cards[0] if len(cards) == 1 else cards


def _optional_float(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "process": lambda text: None if text.lower() == "none" else text,
    "gpu": _gpu,
    "tp_size": int,
    "replicas": int,
    "memory_fraction": _optional_float,
    "max_batch": int,
    "max_wait_ms": float,
    "max_concurrency": int,
}


def architectures(model_path: str) -> tuple[str, ...]:
    """The "architectures" of a checkpoint's config.json; ConfigError says what is missing."""
    path = Path(model_path) / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as exc:
        raise ConfigError(
            f"{model_path} holds no config.json; give the directory of a downloaded checkpoint"
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc
    found = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{path} is not a model config with an 'architectures' list")
    return tuple(found)


def resolve_stages(
    pipeline: PipelineConfig,
    *,
    variant: str | None,
    on_cpu: bool,
    layout: Layout,
    overrides: Mapping[str, str],
) -> tuple[StageConfig, ...]:
    """The stages to run, every layer applied; one ConfigError with all problems."""
    chosen = variant or pipeline.default_variant
    if chosen not in pipeline.variants:
        raise ConfigError(
            f"pipeline {pipeline.name!r} has no variant {chosen!r}; "
            f"choose from {', '.join(pipeline.variants)}"
        )
    stages = {stage.name: stage for stage in pipeline.variants[chosen]}
    for name, stage in stages.items():
        changes: dict[str, Any] = {}
        if on_cpu:
            changes["gpu"] = None
        if on_cpu and layout == "auto" and name in pipeline.cpu_processes:
            changes["process"] = pipeline.cpu_processes[name]
        if layout == "per-stage":
            changes["process"] = None
        stages[name] = dataclasses.replace(stage, **changes)
    found = _apply(overrides, stages)
    resolved = tuple(stages.values())
    found += graph.problems(resolved, pipeline.entry)
    if found:
        raise ConfigError(found)
    return resolved


def to_doc(
    stage: StageConfig, *, device: str, dtype: str, serves: Mapping[str, tuple[Modality, ...]]
) -> StageDoc:
    """A stage for the wire; every reference is resolved once here, before any process starts.

    `serves` names the modalities of the terminals behind each of its `next`.
    """
    checked = {
        field: _name(stage, field, getattr(stage, field))
        for field in ("wait_for_fn", "merge_fn", "route_fn")
    }
    return StageDoc(
        name=stage.name,
        factory=_written(stage, "factory", stage.factory),  # imported in its own process only
        process=stage.process or stage.name,
        device=device,
        dtype=dtype,
        next=stage.next,
        stream_to=stage.stream_to,
        wait_for=stage.wait_for,
        project_payload={
            target: _name(stage, "project_payload", fn) or ""
            for target, fn in stage.project_payload.items()
        },
        serves=dict(serves),
        terminal=stage.terminal,
        memory_fraction=stage.memory_fraction,
        max_batch=stage.max_batch,
        max_wait_ms=stage.max_wait_ms,
        max_concurrency=stage.max_concurrency,
        options={name: value for name, value in stage.options.items() if value is not None},
        **checked,
    )


def _apply(overrides: Mapping[str, str], stages: dict[str, StageConfig]) -> list[str]:
    found = []
    for key, text in overrides.items():
        name, _, field = key.partition(".")
        stage = stages.get(name)
        if stage is None:
            found.append(f"--{key}: no stage {name!r}; {_nearest(name, list(stages))}")
        elif field in _PARSERS:
            try:
                value = _PARSERS[field](text)
            except ValueError as exc:
                found.append(f"--{key}: cannot read {text!r}: {exc}")
            else:
                stages[name] = dataclasses.replace(stage, **{field: value})
        elif field in stage.options:
            found += _apply_option(key, text, field, stage, stages)
        else:
            known = [*_PARSERS, *stage.options]
            found.append(
                f"--{key}: stage {name!r} has no setting {field!r}; {_nearest(field, known)}"
            )
    return found


def _apply_option(
    key: str, text: str, field: str, stage: StageConfig, stages: dict[str, StageConfig]
) -> list[str]:
    default = stage.options[field]
    try:
        value = text if isinstance(default, str) else json.loads(text)
    except json.JSONDecodeError:
        if default is not None:
            return [f"--{key}: cannot read {text!r}; the default is {default!r}"]
        value = text
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if default is not None and type(value) is not type(default):
        return [f"--{key}: {text!r} must be {type(default).__name__}, like {default!r}"]
    stages[stage.name] = dataclasses.replace(stage, options={**stage.options, field: value})
    return []


def _nearest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


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
