"""From a plugin's pipeline and the operator's overrides to checked, resolved stages.

Layers: plugin default < layout and device < command line. Knows field types and nearest matches.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from omni_core import graph
from omni_core.errors import ConfigError
from omni_core.specs import PipelineConfig, StageConfig

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
