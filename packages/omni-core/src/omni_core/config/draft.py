"""The stages of a pipeline while layers are applied to them, one value at a time.

Knows what an operator may set on a stage, and notes for every value where it is from.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_core.config.fields import STAGE_FIELDS, Field, env_value
from omni_core.config.file import ConfigFile
from omni_core.config.refused import refused_setting
from omni_core.specs import StageConfig
from omni_core.validate import nearest

PLUGIN: Final = "plugin"
MAPPINGS: Final = ("options", "env")
_OPERATORS: Final = frozenset({*STAGE_FIELDS, *MAPPINGS})
_TOPOLOGY: Final = frozenset(f.name for f in dataclasses.fields(StageConfig)) - _OPERATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One value of one layer."""

    value: Any
    place: str
    """For errors: "--thinker.gpu", "omni.yaml:7: stages.thinker.gpu"."""
    source: str
    """For explanations: "--thinker.gpu", "omni.yaml:7"."""
    is_text: bool

    @classmethod
    def on_command_line(cls, flag: str, value: str) -> Given:
        """A word behind a flag."""
        return cls(value=value, place=flag, source=flag, is_text=True)

    @classmethod
    def in_file(cls, file: ConfigFile, *path: str) -> Given:
        """The value a file has under these keys, which must exist."""
        value: Any = file.values
        for key in path:
            value = value[key]
        source = file.where(*path)
        return cls(value=value, place=f"{source}: {'.'.join(path)}", source=source, is_text=False)

    def value_for(self, field: Field) -> Any:
        """The value as the field stores it; ValueError if it is not as the field expects."""
        return field.from_text(self.value) if self.is_text else field.store(self.value)


class Draft:
    """Stages under construction. What cannot be applied is noted in `problems` and left out."""

    def __init__(self, stages: Iterable[StageConfig]) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self.sources = {
            name: dict.fromkeys(_places(stage), PLUGIN) for name, stage in self.stages.items()
        }
        self.problems: list[str] = []

    def set_by(self, stage: str | None, field: str) -> str | None:
        """Where an operator or a layer set a field; None if the plugin did."""
        source = self.sources.get(stage or "", {}).get(field, PLUGIN)
        return None if source == PLUGIN else source

    def place(self, cpu_processes: Mapping[str, str], *, on_cpu: bool, layout: str) -> None:
        """The layer of device and layout."""
        for name in self.stages:
            if on_cpu:
                self._set(name, "gpu", None, "device cpu")
            if layout == "per-stage":
                self._set(name, "process", None, "layout per-stage")
            elif on_cpu and name in cpu_processes:
                self._set(name, "process", cpu_processes[name], "device cpu")

    def choose_engine(self, name: str, engine: str, source: str) -> None:
        """The engine of an autoregressive stage for which no layer has named one."""
        self._set(name, "ar_engine", engine, source)

    def apply_file(self, file: ConfigFile) -> None:
        """The layer of the YAML file."""
        stages = file.values.get("stages")
        if stages is None:
            return
        if not isinstance(stages, dict):
            self.problems.append(f"{file.where('stages')}: stages: expected {{STAGE: settings}}")
            return
        for name, settings in stages.items():
            where = file.where("stages", name)
            if name not in self.stages:
                hint = nearest(name, list(self.stages))
                self.problems.append(f"{where}: stages.{name}: no stage {name!r}; {hint}")
            elif settings is not None and not isinstance(settings, dict):
                self.problems.append(f"{where}: stages.{name}: expected {{FIELD: value}}")
            else:
                for field in settings or {}:
                    self._apply_key(file, name, field)

    def apply_overrides(self, overrides: Mapping[str, str]) -> None:
        """The layer of the command line: {"stage.field": text}."""
        for key, value in overrides.items():
            name, _, field = key.partition(".")
            given = Given.on_command_line(f"--{key}", value)
            stage = self.stages.get(name)
            group, dot, rest = field.partition(".")
            if stage is None:
                hint = nearest(name, list(self.stages))
                self.problems.append(f"--{key}: no stage {name!r}; {hint}")
            elif dot and group in MAPPINGS:
                self._apply_entry(name, group, rest, given)
            elif field not in STAGE_FIELDS and field in stage.options:
                self._apply_entry(name, "options", field, given)
            else:
                self._apply_field(name, field, given)

    def _apply_key(self, file: ConfigFile, name: str, field: str) -> None:
        given = Given.in_file(file, "stages", name, field)
        if field not in MAPPINGS:
            self._apply_field(name, field, given)
        elif isinstance(given.value, dict):
            for key in given.value:
                entry = Given.in_file(file, "stages", name, field, key)
                self._apply_entry(name, field, key, entry)
        elif given.value is not None:
            self.problems.append(f"{given.place}: expected {{NAME: value}}")

    def _apply_field(self, name: str, field: str, given: Given) -> None:
        spec = STAGE_FIELDS.get(field)
        if spec is None:
            self.problems.append(f"{given.place}: {self._unknown(name, field, given)}")
            return
        try:
            value = given.value_for(spec)
        except ValueError:
            self.problems.append(f"{given.place}: got {given.value!r}; expected {spec.expected}")
        else:
            self._set(name, field, value, given.source)

    def _unknown(self, name: str, field: str, given: Given) -> str:
        options = self.stages[name].options
        if field in _TOPOLOGY:
            return f"{field} belongs to the pipeline's graph, which only its plugin can change"
        if field in options:
            return f"{field} is an option; write it under stages.{name}.options"
        if reason := refused_setting(field):
            return reason
        known = [*STAGE_FIELDS, *MAPPINGS, *options]
        return f"stage {name!r} has no setting {field!r}; {nearest(field, known)}"

    def _apply_entry(self, name: str, group: str, key: str, given: Given) -> None:
        stage = self.stages[name]
        if group == "options" and key not in stage.options:
            hint = refused_setting(key) or (
                f"stage {name!r} has no option {key!r}; {nearest(key, list(stage.options))}"
            )
            self.problems.append(f"{given.place}: {hint}")
            return
        try:
            if group == "env":
                value: Any = env_value(given.value)
            else:
                value = _option(given, stage.options[key])
        except ValueError as exc:
            self.problems.append(f"{given.place}: got {given.value!r}; expected {exc}")
            return
        changed = {**getattr(stage, group), key: value}
        self._set(name, group, changed, given.source, f"{group}.{key}")

    def _set(self, name: str, field: str, value: Any, source: str, place: str = "") -> None:
        stage = self.stages[name]
        if source.startswith(("device ", "layout ")) and getattr(stage, field) == value:
            return  # the plugin had it so already
        self.stages[name] = dataclasses.replace(stage, **{field: value})
        self.sources[name][place or field] = source


def _places(stage: StageConfig) -> Iterator[str]:
    for field in dataclasses.fields(stage):
        if field.name in (*MAPPINGS, "project_payload"):
            yield from (f"{field.name}.{key}" for key in getattr(stage, field.name))
        elif field.name != "name":
            yield field.name


def _option(given: Given, default: Any) -> Any:
    """A value like the default, anything if that is None; ValueError says what it must be."""
    value = _plain(given.value, default) if given.is_text else given.value
    if default is None:
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if type(value) is not type(default):
        raise ValueError(f"{type(default).__name__}, like {default!r}")
    return value


def _plain(word: str, default: Any) -> Any:
    if isinstance(default, str):
        return word
    try:
        return json.loads(word)
    except json.JSONDecodeError:
        return word
