"""Plugin default < layout and device < YAML file < command line, and where each value is from.

Knows the order of the layers, and collects everything that is wrong in any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from omni_core import devices, validate
from omni_core.config import engines
from omni_core.config.draft import PLUGIN, Draft, Given
from omni_core.config.fields import PIPELINE_FIELDS, Field, text
from omni_core.config.file import ConfigFile
from omni_core.config.refused import refused_device, refused_setting
from omni_core.config.variant import choose_variant
from omni_core.engine.availability import Machine
from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, PipelineConfig, StageConfig
from omni_core.validate import nearest

Layout: TypeAlias = Literal["auto", "per-stage"]

MODEL_PATH: Final = text("the checkpoint: a directory, or a hub id")
OTHER_KEYS: Final = ("model_path", "stages", "server")
"""What may stand at the top of a file besides `PIPELINE_FIELDS`; `server` is the server's own."""
DEFAULT: Final = "default"
_AUTO: Final = ": auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an operator asks for, unchecked."""

    flags: Mapping[str, str | None] = field(default_factory=dict)
    """Values of `PIPELINE_FIELDS` given on the command line; None is not given."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """{"stage.field": value as written on the command line}."""
    file: ConfigFile = field(default_factory=ConfigFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the pipeline, as it will be."""

    value: Any
    source: str
    """"plugin", "default", "omni.yaml:3" or "--variant"; after which ": auto" if that was
    asked."""

    @property
    def is_auto(self) -> bool:
        """Whether the value was ours to choose."""
        return self.source.endswith(_AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Every setting of a pipeline, and where it is from."""

    pipeline: PipelineConfig
    settings: Mapping[str, Setting]
    """By the names of `PIPELINE_FIELDS`; nothing is "auto" any more but the layout."""
    stages: tuple[StageConfig, ...]
    sources: Mapping[str, Mapping[str, str]]
    """{stage: {field, "options.NAME" or "env.NAME": source}}."""


def resolve(
    pipeline: PipelineConfig,
    asked: Asked,
    *,
    cards: int,
    here: bool = True,
    info: ModelInfo | None = None,
    machine: Machine | None = None,
) -> Resolved:
    """Apply every layer; one ConfigError with all problems.

    `cards` is how many CUDA cards this machine has. With `here` False the result may describe
    another machine: cards and engines that are missing here are no problem then. `info` is of the
    checkpoint, which may be unable to run some variants. `machine` is this one if not given.
    """
    machine = machine or Machine.here()
    found = list(_strange_keys(asked.file))
    settings = _settings(pipeline, asked, cards, machine, found)
    if info is not None:
        settings["variant"] = _fitting(settings["variant"], pipeline, info, found)
    variant, device = pipeline.variants[settings["variant"].value], settings["device"].value
    draft = _draft(pipeline, settings, asked)
    engines.choose(draft, settings["ar_engine"], machine)
    stages = tuple(draft.stages.values())
    found += draft.problems
    wrong = validate.problems(
        stages if len(stages) == len(variant) else variant,  # the plugin used a name twice
        pipeline.entry,
        produces=pipeline.produces.get(settings["variant"].value, ()),
    )
    found += [problem.sentence(draft.set_by(problem.stage, problem.field)) for problem in wrong]
    if here or device == "cpu":
        found += _misplaced(stages, settings["device"], cards)
    if here:
        found += engines.missing(draft, machine)
    if found:
        raise ConfigError(found)
    return Resolved(pipeline=pipeline, settings=settings, stages=stages, sources=draft.sources)


def _draft(pipeline: PipelineConfig, settings: Mapping[str, Setting], asked: Asked) -> Draft:
    """The stages of the variant with what device, file and command line say of them."""
    draft = Draft(pipeline.variants[settings["variant"].value])
    on_cpu, layout = settings["device"].value == "cpu", settings["layout"].value
    draft.place(pipeline.cpu_processes, on_cpu=on_cpu, layout=layout)
    draft.apply_file(asked.file)
    draft.apply_overrides(asked.overrides)
    return draft


def checkpoint_path(given: str | None, file: ConfigFile) -> str:
    """The checkpoint asked for, outside the file or in it; ConfigError if it is in neither."""
    named = file.values.get("model_path") if given is None else given
    if named is None:
        raise ConfigError("no checkpoint; give --model-path DIR, or model_path in the file")
    try:
        path: str = MODEL_PATH.store(named)
    except ValueError as exc:
        place = f"{file.where('model_path')}: model_path"
        raise ConfigError(_unreadable(place, named, MODEL_PATH)) from exc
    return path


def _strange_keys(file: ConfigFile) -> Iterator[str]:
    known = [*PIPELINE_FIELDS, *OTHER_KEYS]
    for key in file.values:
        if key not in known:
            reason = refused_setting(key) or f"no such setting; {nearest(key, known)}"
            yield f"{file.where(key)}: {key}: {reason}"


def _settings(
    pipeline: PipelineConfig, asked: Asked, cards: int, machine: Machine, found: list[str]
) -> dict[str, Setting]:
    """The checked settings of the pipeline; for what is wrong, the default stands in."""
    settings = {name: Setting(value="auto", source=DEFAULT) for name in PIPELINE_FIELDS}
    settings["variant"] = Setting(value=pipeline.default_variant, source=PLUGIN)
    settings["compile"] = Setting(value="background", source=DEFAULT)
    for name, spec in PIPELINE_FIELDS.items():
        given = _given(name, asked)
        if given is None:
            continue
        try:
            value = given.value_for(spec)
        except ValueError:
            found.append(_unreadable(given.place, given.value, spec))
            continue
        if problem := _not_there(name, value, pipeline):
            found.append(f"{given.place}: {problem}")
        else:
            settings[name] = Setting(value=value, source=given.source)
    settings["device"] = _chosen(settings["device"], devices.default_device(cards))
    on_card = settings["device"].value == "cuda"
    settings["dtype"] = _chosen(settings["dtype"], "bfloat16" if on_card else "float32")
    engine = machine.default_engine(settings["device"].value)
    settings["ar_engine"] = _chosen(settings["ar_engine"], engine)
    return settings


def _fitting(
    setting: Setting, pipeline: PipelineConfig, info: ModelInfo, found: list[str]
) -> Setting:
    asked = None if setting.source == PLUGIN else setting.value
    try:
        value = choose_variant(pipeline, asked, info)
    except ConfigError as exc:
        found += exc.problems
        return setting
    return setting if value == setting.value else Setting(value=value, source="checkpoint")


def _given(name: str, asked: Asked) -> Given | None:
    """The value of the highest layer that has one."""
    flag = asked.flags.get(name)
    if flag is not None:
        return Given.on_command_line(f"--{name.replace('_', '-')}", flag)
    if name in asked.file.values:
        return Given.in_file(asked.file, name)
    return None


def _not_there(name: str, value: str, pipeline: PipelineConfig) -> str | None:
    if name == "variant" and value not in pipeline.variants:
        variants = list(pipeline.variants)
        return f"pipeline {pipeline.name!r} has no variant {value!r}; {_choose(value, variants)}"
    if name == "device" and value not in devices.DEVICES:
        return refused_device(value) or f"no device {value!r}; choose auto, cpu or cuda"
    return None


def _choose(name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return f"choose from {', '.join(known)}" if hint.startswith("known") else hint


def _chosen(setting: Setting, value: str) -> Setting:
    if setting.value != "auto":
        return setting
    return Setting(value=value, source=f"{setting.source}{_AUTO}")


def _misplaced(stages: tuple[StageConfig, ...], device: Setting, cards: int) -> list[str]:
    if device.value == "cpu":
        return [
            f"stage {stage.name!r}: gpu is {stage.gpu} but the device is cpu ({device.source}); "
            f"use --device cuda, or --{stage.name}.gpu none"
            for stage in stages
            if stage.gpu is not None
        ]
    if not cards:
        return [f"device is cuda ({device.source}) but no CUDA card is visible; use --device cpu"]
    return devices.missing_cards(stages, cards)


def _unreadable(place: str, value: object, spec: Field) -> str:
    return f"{place}: got {value!r}; expected {spec.expected}"
