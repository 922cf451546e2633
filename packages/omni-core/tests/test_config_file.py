"""YAML files: their lines, their duplicate keys, and values of the wrong type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core.config import Asked, ConfigFile, Resolved, checkpoint_path, resolve
from omni_core.config.explain import document, rows, to_yaml
from omni_core.config.fields import PIPELINE_FIELDS, STAGE_FIELDS
from omni_core.config.refused import REFUSED, refused_device, refused_setting
from omni_core.errors import ConfigError
from omni_core.pipeline import Pipeline
from omni_core.specs import ModelInfo, PipelineConfig, Ref, StageConfig
from omni_core.testing import echo

BUILD = Ref("omni_core.testing.echo:build_intake")
OPTIONS = {"pages": 8, "share": 0.5, "mode": "fast", "sizes": (1, 2), "limit": None}
PIPELINE = PipelineConfig(
    name="one",
    architectures=(),
    variants={
        "one": (StageConfig(name="think", factory=BUILD, terminal="text", options=OPTIONS),),
        "two": (StageConfig(name="think", factory=BUILD, terminal="text", gpu=0),),
    },
    default_variant="one",
    entry="think",
    describe=echo.describe,
)


def resolved(text: str, *, cards: int = 0, here: bool = True, **flags: str) -> Resolved:
    file = ConfigFile.parse(text, name="omni.yaml")
    return resolve(PIPELINE, Asked(file=file, flags=flags), cards=cards, here=here)


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolved(text, cards=1)
    return caught.value.problems


def test_values_come_with_their_lines() -> None:
    file = ConfigFile.parse("a: 1\nb:\n  - x: [1, 2.5]\n  - null\nc: {d: yes, e: 'no'}\n", name="f")
    assert file.values == {
        "a": 1,
        "b": [{"x": [1, 2.5]}, None],
        "c": {"d": True, "e": "no"},
    }
    assert file.where("c", "e") == "f:5"
    assert file.where("b", "0", "x") == "f:3"
    assert file.where("nowhere") == "f"


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "omni.yaml").write_text("# nothing\n")
    assert ConfigFile.read(tmp_path / "omni.yaml") == ConfigFile(name="omni.yaml")


def test_duplicate_keys_are_told_with_both_lines_at_every_depth() -> None:
    text = (
        "variant: one\nstages:\n  think: {gpu: 0}\n  think:\n    gpu: 1\n    gpu: 2\nvariant: two\n"
    )
    with pytest.raises(ConfigError) as caught:
        ConfigFile.parse(text, name="omni.yaml")
    assert caught.value.problems == (
        "omni.yaml:4: stages.think is set again, first on line 3; remove one",
        "omni.yaml:7: variant is set again, first on line 1; remove one",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "omni.yaml:1: not YAML: "),
        ("a: !!python/object:os.system {}", "omni.yaml:1: the tag "),
        ("a: !!python/name:os.system", "omni.yaml:1: not YAML: could not determine a constructor"),
        ("- a\n- b\n", "omni.yaml:1: a configuration file is a mapping of settings"),
        ("a: 1\n---\nb: 2\n", "omni.yaml:2: not YAML: "),
        ("no: 1", "omni.yaml:1: 'no' is no name; put it in quotes"),
        ("? [a, b]\n: 1", "omni.yaml:1: "),
        ("a: &x [*x]", "omni.yaml:1: an alias refers to what it is part of"),
        ("a: 2026-01-02", "omni.yaml:1: '2026-01-02' is a date; put it in quotes"),
        ("a: 2026-13-45", "omni.yaml: not YAML: "),
        ("base: &b {x: 1}\na: {<<: *b}", "omni.yaml:2: '<<' is no name; put it in quotes"),
    ],
)
def test_what_is_no_plain_configuration_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigFile.parse(text, name="omni.yaml")
    assert caught.value.problems[0].startswith(sentence), caught.value.problems


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing.yaml", "binary", "."):
        with pytest.raises(ConfigError, match=r"--config .*: cannot be read: "):
            ConfigFile.read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("varient: one", "omni.yaml:1: varient: no such setting; did you mean 'variant'?"),
        ("variant: oen", "omni.yaml:1: variant: pipeline 'one' has no variant 'oen'; did you mean"),
        ("variant: 1", "omni.yaml:1: variant: got 1; expected text"),
        ("dtype: int8", "omni.yaml:1: dtype: got 'int8'; expected auto, float32, bfloat16 or"),
        ("layout: off", "omni.yaml:1: layout: got False; expected auto or per-stage"),
        ("device: gpu", "omni.yaml:1: device: no device 'gpu'; choose auto, cpu or cuda"),
        ("ar_engine: vllm", "omni.yaml:1: ar_engine: got 'vllm'; expected auto, torch or sglang"),
        ("ar_engine: sglang", "pipeline: ar_engine is sglang (omni.yaml:1) but no stage can be"),
        ("stages: [think]", "omni.yaml:1: stages: expected {STAGE: settings}"),
        ("stages: {think: 1}", "omni.yaml:1: stages.think: expected {FIELD: value}"),
        ("stages: {thnk: {}}", "omni.yaml:1: stages.thnk: no stage 'thnk'; did you mean 'think'?"),
    ],
)
def test_wrong_settings_of_the_pipeline_are_told_with_the_line(text: str, sentence: str) -> None:
    assert problems_of(text)[0].startswith(sentence), problems_of(text)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "max_bacth: 1",
            "max_bacth: stage 'think' has no setting 'max_bacth'; did you mean 'max_b",
        ),
        ("next: [x]", "next: next belongs to the pipeline's graph, which only its plugin can"),
        ("pages: 9", "pages: pages is an option; write it under stages.think.options"),
        ("max_batch: '8'", "max_batch: got '8'; expected a whole number"),
        ("max_batch: true", "max_batch: got True; expected a whole number"),
        ("max_batch: 1.0", "max_batch: got 1.0; expected a whole number"),
        ("max_batch: null", "max_batch: got None; expected a whole number"),
        ("max_wait_ms: .nan", "max_wait_ms: got nan; expected a number"),
        ("max_wait_ms: x", "max_wait_ms: got 'x'; expected a number"),
        ("memory_fraction: [1]", "memory_fraction: got [1]; expected a number or null"),
        ("process: 7", "process: got 7; expected text or null"),
        ("gpu: true", "gpu: got True; expected a card's number, a list of them, or null"),
        ("gpu: [0, x]", "gpu: got [0, 'x']; expected a card's number"),
        ("gpu: []", "gpu: got []; expected a card's number"),
        ("env: {A: 1.5}", "env.A: got 1.5; expected text; put it in quotes"),
        ("env: [A]", "env: expected {NAME: value}"),
        ("options: {page: 1}", "options.page: stage 'think' has no option 'page'; did you mean"),
        ("options: {pages: '9'}", "options.pages: got '9'; expected int, like 8"),
        ("options: {share: true}", "options.share: got True; expected float, like 0.5"),
        ("options: {sizes: 3}", "options.sizes: got 3; expected tuple, like (1, 2)"),
        ("options: {lora_paths: x}", "options.lora_paths: LoRA is not supported: "),
    ],
)
def test_wrong_settings_of_a_stage_are_told_with_the_line(setting: str, sentence: str) -> None:
    found = problems_of(f"stages:\n  think:\n    {setting}\n")
    assert found[0].startswith(f"omni.yaml:3: stages.think.{sentence}"), found


def test_problems_of_the_graph_say_where_the_value_was_set() -> None:
    assert problems_of("stages:\n  think:\n    max_batch: 0\n") == (
        "stage 'think': max_batch is 0 (omni.yaml:3); it must be at least 1",
    )


@pytest.mark.parametrize("name", [name for item in REFUSED for name in item.names])
def test_what_is_not_supported_is_refused_with_the_reason(name: str) -> None:
    [found] = problems_of(f"{name}: true")
    assert found.startswith(f"omni.yaml:1: {name}: ")
    assert " is not supported: " in found
    assert found.count("; ") >= 1
    if name not in STAGE_FIELDS:
        [found] = problems_of(f"stages: {{think: {{{name}: 1}}}}")
        assert " is not supported: " in found


@pytest.mark.parametrize("device", [d for item in REFUSED for d in item.devices])
def test_other_accelerators_are_refused(device: str) -> None:
    [found] = problems_of(f"device: {device}")
    assert " is not supported: only CUDA cards and CPUs are supported" in found
    assert refused_device(f"{device}:0") == refused_device(device)


def test_names_are_refused_in_any_spelling_and_others_are_not() -> None:
    assert refused_setting("--Enable-LoRA") == refused_setting("enable_lora") is not None
    assert refused_setting("max_batch") is None
    assert refused_device("cuda") is None


def test_the_layers_are_in_order() -> None:
    text = "variant: two\ndtype: float16\nstages: {think: {gpu: 1, env: {A: x}, max_batch: 2}}\n"
    file = ConfigFile.parse(text, name="omni.yaml")
    asked = Asked(
        file=file,
        flags={"dtype": "float32", "device": "cuda"},
        overrides={"think.max_batch": "3", "think.env.B": "y", "think.env.A": "z"},
    )
    made = resolve(PIPELINE, asked, cards=2)
    [stage] = made.stages
    assert (stage.gpu, stage.max_batch, stage.env) == (1, 3, {"A": "z", "B": "y"})
    assert made.settings["dtype"].value == "float32"
    sources = {row.name: row.source for row in rows(made)}
    assert sources["variant"] == "omni.yaml:1"
    assert sources["dtype"] == "--dtype"
    assert sources["gpu"] == "omni.yaml:3"
    assert sources["max_batch"] == "--think.max_batch"
    assert sources["env.A"] == "--think.env.A"
    assert sources["max_concurrency"] == "plugin"


def test_options_may_be_named_in_full_on_the_command_line() -> None:
    asked = Asked(overrides={"think.options.pages": "9", "think.sizes": "[3]"})
    [stage] = resolve(PIPELINE, asked, cards=0).stages
    assert stage.options == {**OPTIONS, "pages": 9, "sizes": (3,)}


def test_device_and_layout_are_a_layer_of_their_own() -> None:
    made = resolved("device: cpu\nlayout: per-stage\nvariant: two\n", cards=1)
    sources = made.sources["think"]
    assert sources["gpu"] == "device cpu"
    assert sources["process"] == "plugin"  # it had its own already


def test_a_checkpoint_may_call_for_another_variant() -> None:
    stage = StageConfig(name="think", factory=BUILD, terminal="audio")
    pipeline = replace(PIPELINE, variants={"one": (stage,), "two": PIPELINE.variants["one"]})
    mute = ModelInfo(context_length=1, refused_modalities={"audio": "it has no voice"})
    made = resolve(pipeline, Asked(), cards=0, info=mute)
    assert (made.settings["variant"].value, made.settings["variant"].source) == (
        "two",
        "checkpoint",
    )
    with pytest.raises(ConfigError) as caught:
        resolve(pipeline, Asked(flags={"variant": "one", "dtype": "x"}), cards=0, info=mute)
    assert len(caught.value.problems) == 2


def test_what_is_exported_resolves_to_the_same() -> None:
    text = (
        "device: cuda\nvariant: one\n"
        "stages: {think: {gpu: 1, env: {A: 'on'}, options: {pages: 3, share: 1, sizes: [5]}}}\n"
    )
    first = resolved(text, here=False)
    second = resolved(to_yaml(document(first)), here=False)
    assert second.stages == first.stages
    assert [s.value for s in second.settings.values()] == [s.value for s in first.settings.values()]
    assert document(second) == document(first)


def test_every_field_of_a_stage_is_explained() -> None:
    names = {row.name.partition(".")[0] for row in rows(resolved(""))}
    assert {*PIPELINE_FIELDS, *STAGE_FIELDS, "factory", "terminal", "options"} <= names
    values = {row.name: row.value for row in rows(resolved(""))}
    assert values["factory"] == BUILD.target
    assert values["options.sizes"] == "1, 2"
    assert values["options.limit"] == "-"


def test_the_checkpoint_comes_from_the_caller_or_the_file() -> None:
    file = ConfigFile(values={"model_path": "in-file"})
    assert checkpoint_path("given", file) == "given"
    assert checkpoint_path(None, file) == "in-file"
    with pytest.raises(ConfigError, match="config: model_path: got 3; expected text"):
        checkpoint_path(None, ConfigFile(values={"model_path": 3}))
    with pytest.raises(ConfigError, match="give --model-path DIR, or model_path in the file"):
        checkpoint_path(None, ConfigFile())


async def test_python_and_server_share_the_file(tmp_path: Path) -> None:
    model = echo.write_checkpoint(tmp_path / "model")
    content: dict[str, Any] = {
        "model_path": model,
        "device": "cpu",
        "server": {"port": 1},
        "stages": {"voice": {"options": {"frames": 0}}},
    }
    pipeline = Pipeline.load(config=ConfigFile(values=content), plugins=echo.plugins())
    assert pipeline.variant == "speech"
    with pytest.raises(Exception, match="frames is 0; it must be at least 1"):
        async with pipeline:
            pass
    with pytest.raises(ConfigError, match="--device: an AMD accelerator is not supported"):
        Pipeline.load(model, device="rocm", plugins=echo.plugins())
