"""A resolved configuration for people: every value with its source, and as a file to load again.

Knows the shape of the YAML file. Resolves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import yaml

from omni_core.config.draft import MAPPINGS
from omni_core.config.fields import STAGE_FIELDS
from omni_core.config.layers import Resolved
from omni_core.specs import Ref, StageConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of `omni config explain`."""

    stage: str | None
    """None for settings of the pipeline."""
    name: str
    value: str
    source: str


def rows(resolved: Resolved) -> Iterator[Row]:
    """Every setting of the pipeline, then every field, option and variable of every stage."""
    for name, setting in resolved.settings.items():
        yield Row(stage=None, name=name, value=setting.value, source=setting.source)
    for stage in resolved.stages:
        for name, source in resolved.sources[stage.name].items():
            yield Row(stage=stage.name, name=name, value=_shown(_value(stage, name)), source=source)


def document(resolved: Resolved) -> dict[str, Any]:
    """The configuration as the content of a file which resolves to the same on any machine."""
    settings: dict[str, Any] = {name: s.value for name, s in resolved.settings.items()}
    return {**settings, "stages": {stage.name: _stage(stage) for stage in resolved.stages}}


def to_yaml(content: Mapping[str, Any]) -> str:
    """The text of a file with this content."""
    dumped: str = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    return dumped


def _stage(stage: StageConfig) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(stage, name) for name in STAGE_FIELDS}
    given = {name: value for name, value in stage.options.items() if value is not None}
    values |= {"options": given, "env": dict(stage.env)}
    return {name: value for name, value in values.items() if value or name not in MAPPINGS}


def _value(stage: StageConfig, place: str) -> object:
    field, _, key = place.partition(".")
    value: object = getattr(stage, field)
    return value[key] if isinstance(value, Mapping) and key else value


def _shown(value: object) -> str:
    match value:
        case None | ():
            return "-"
        case Ref(target=target):
            return target
        case tuple() | list():
            return ", ".join(map(_shown, value))
        case Mapping():
            return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) or "-"
        case bool():
            return str(value).lower()
        case FunctionType() | type():
            return f"{value.__module__}:{value.__qualname__}"
        case _:
            return str(value)
