"""Layers of configuration, from a plugin's pipeline to what goes over the wire."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core import devices
from omni_core.config import Asked, architectures, resolve, to_doc
from omni_core.errors import ConfigError
from omni_core.messages import StageDoc
from omni_core.specs import ModelInfo, PipelineConfig, Ref, StageConfig

BUILD = Ref("omni_core.testing.echo:build_intake")
OPTIONS = {"pages": 8, "share": 0.5, "mode": "fast", "deep": False, "limit": None}


def describe(model_path: str) -> ModelInfo:
    return ModelInfo(context_length=1)


def merge(arrived: Mapping[str, Any]) -> dict[str, Any]:
    return {}


PIPELINE = PipelineConfig(
    name="pair",
    architectures=("Pair",),
    variants={
        "two": (
            StageConfig(name="think", factory=BUILD, next=("say",), gpu=0, options=OPTIONS),
            StageConfig(name="say", factory=BUILD, terminal="audio", gpu=1, process="voice"),
        ),
        "one": (StageConfig(name="think", factory=BUILD, terminal="text"),),
    },
    default_variant="two",
    entry="think",
    describe=describe,
    cpu_processes={"think": "front", "say": "front"},
)


def stages_of(
    overrides: Mapping[str, str] | None = None,
    *,
    variant: str | None = None,
    on_cpu: bool = False,
    layout: str = "auto",
) -> dict[str, StageConfig]:
    flags = {"variant": variant, "device": "cpu" if on_cpu else "cuda", "layout": layout}
    asked = Asked(flags=flags, overrides=overrides or {})
    return {stage.name: stage for stage in resolve(PIPELINE, asked, cards=2).stages}


def test_the_plugins_own_values_are_the_first_layer() -> None:
    stages = stages_of()
    assert (stages["think"].gpu, stages["think"].process) == (0, None)
    assert (stages["say"].gpu, stages["say"].process) == (1, "voice")


def test_variants_are_chosen_by_name() -> None:
    assert list(stages_of(variant="one")) == ["think"]
    with pytest.raises(ConfigError, match="'pair' has no variant 'three'; choose from two, one"):
        stages_of(variant="three")


def test_a_cpu_takes_the_cards_away_and_groups_the_processes() -> None:
    stages = stages_of(on_cpu=True)
    assert {stage.gpu for stage in stages.values()} == {None}
    assert {stage.process for stage in stages.values()} == {"front"}


def test_per_stage_gives_each_its_own_process() -> None:
    for on_cpu in (False, True):
        stages = stages_of(on_cpu=on_cpu, layout="per-stage")
        assert {stage.process for stage in stages.values()} == {None}


def test_the_command_line_is_the_last_layer() -> None:
    stages = stages_of({"say.process": "mine"}, on_cpu=True, layout="per-stage")
    assert stages["say"].process == "mine"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("process", "x", "x"),
        ("process", "None", None),
        ("gpu", "1", 1),
        ("gpu", "cpu", None),
        ("gpu", "none", None),
        ("memory_fraction", "0.25", 0.25),
        ("memory_fraction", "none", None),
        ("max_batch", "4", 4),
        ("max_wait_ms", "2.5", 2.5),
        ("max_concurrency", "3", 3),
    ],
)
def test_fields_are_read_by_type(field: str, text: str, value: object) -> None:
    assert getattr(stages_of({f"think.{field}": text})["think"], field) == value


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("pages", "16", 16),
        ("share", "0.75", 0.75),
        ("share", "1", 1.0),
        ("mode", "slow", "slow"),
        ("mode", "7", "7"),
        ("deep", "true", True),
        ("limit", "5", 5),
        ("limit", "a/path", "a/path"),
    ],
)
def test_options_are_read_like_their_default(option: str, text: str, value: object) -> None:
    found = stages_of({f"think.{option}": text})["think"].options
    assert found == {**OPTIONS, option: value}
    assert type(found[option]) is type(value)
    assert PIPELINE.variants["two"][0].options == OPTIONS


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("think.max_batch", "many", "--think.max_batch: got 'many'; expected a whole number"),
        ("think.gpu", "0,x", "--think.gpu: got '0,x'; expected a card's number"),
        ("think.pages", "1.5", "--think.pages: got '1.5'; expected int, like 8"),
        ("think.pages", "true", "--think.pages: got 'true'; expected int, like 8"),
        ("think.deep", "1", "--think.deep: got '1'; expected bool, like False"),
        ("think.deep", "yes", "--think.deep: got 'yes'; expected bool, like False"),
        ("thnk.gpu", "0", "--thnk.gpu: no stage 'thnk'; did you mean 'think'?"),
        ("x.gpu", "0", "--x.gpu: no stage 'x'; known: think, say"),
        ("think.page", "1", "--think.page: stage 'think' has no setting 'page'; did you mean"),
        ("think", "1", "--think: stage 'think' has no setting ''; known: process, gpu"),
        ("think.next", "say", "--think.next: next belongs to the pipeline's graph"),
        ("think.max_batch", "0", "stage 'think': max_batch is 0"),
    ],
)
def test_a_wrong_setting_is_told(key: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stages_of({key: text})
    assert caught.value.problems[0].startswith(sentence), caught.value.problems


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        stages_of({"think.pagse": "1", "said.gpu": "0", "say.max_batch": "-2"})
    assert len(caught.value.problems) == 3


# -- references


def doc(**fields: Any) -> StageDoc:
    stage = StageConfig(**{"name": "s", "factory": BUILD, **fields})
    return to_doc(stage, devices=("cpu",), dtype="float32", serves={})


def test_callables_are_written_as_names() -> None:
    from omni_core.testing import echo

    made = doc(
        factory=echo.build_writer,
        route_fn=echo.route_writer,
        merge_fn=Ref("omni_core.testing.echo:describe"),
        project_payload={"t": echo.describe},
    )
    assert made.factory == "omni_core.testing.echo:build_writer"
    assert made.route_fn == "omni_core.testing.echo:route_writer"
    assert made.merge_fn == "omni_core.testing.echo:describe"
    assert made.project_payload == {"t": "omni_core.testing.echo:describe"}
    assert made.wait_for_fn is None
    assert made.process == "s"


class Holder:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    "value",
    [lambda ctx: None, Holder.method, Holder().method, functools.partial(merge, {})],
    ids=["lambda", "method", "bound", "partial"],
)
def test_what_no_other_process_can_import_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"stage 's': factory is .*name a function or class"):
        doc(factory=value)


def test_a_function_of_the_main_script_is_refused() -> None:
    def build(ctx: object) -> None: ...

    build.__module__, build.__qualname__ = "__main__", "build"
    with pytest.raises(ConfigError, match="factory is __main__:build"):
        doc(factory=build)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("omni_core.testing.echo", "must be written 'module:attribute'"),
        ("omni_core.nowhere:f", "cannot import 'omni_core.nowhere'"),
        ("omni_core.testing.echo:f", "'omni_core.testing.echo' has no 'f'"),
        ("omni_core.testing.echo:SAMPLE_RATE", "is not callable"),
    ],
)
def test_references_are_resolved_before_anything_starts(target: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        doc(route_fn=Ref(target))


# -- checkpoints and devices


def test_architectures_come_from_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["A", "B"]}')
    assert architectures(str(tmp_path)) == ("A", "B")


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"architectures": null}', '{"architectures": "A"}', "\xff"]
)
def test_a_strange_config_json_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json is not"):
        architectures(str(tmp_path))


def test_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json; give the directory"):
        architectures(str(tmp_path / "missing"))


def test_a_gguf_file_is_no_checkpoint_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    for given in (file, tmp_path):
        with pytest.raises(ConfigError, match=r"gguf.*not supported; give the directory"):
            architectures(str(given))


def test_missing_cards_are_told_with_the_flag() -> None:
    stages = (replace(PIPELINE.variants["two"][0], gpu=(0, 3)), PIPELINE.variants["two"][1])
    assert devices.missing_cards(stages, 2) == [
        "stage 'think': gpu is 3 but this machine has 2 card(s); use --think.gpu N or another "
        "--variant"
    ]
    assert [devices.stage_device(stage) for stage in stages] == ["cuda:0", "cuda:1"]


def test_ranks_have_cards_of_their_own_in_every_replica() -> None:
    split = replace(PIPELINE.variants["two"][0], tp_size=2, replicas=2, gpu=(3, 4, 5, 6))
    assert devices.stage_devices(split) == ("cuda:3", "cuda:4")
    assert devices.stage_devices(split, 1) == ("cuda:5", "cuda:6")
    assert devices.stage_devices(replace(split, gpu=None)) == ("cpu", "cpu")
    doc = to_doc(split, devices=devices.stage_devices(split), dtype="bfloat16", serves={})
    assert (doc.device, doc.other_devices) == ("cuda:3", ("cuda:4",))


def test_dtype_follows_the_device() -> None:
    def dtype(cards: int, **flags: str) -> str:
        return resolve(PIPELINE, Asked(flags=flags), cards=cards).settings["dtype"].value

    assert dtype(2) == "bfloat16"
    assert dtype(0) == "float32"
    assert dtype(2, device="cpu") == "float32"
    assert dtype(0, dtype="float16") == "float16"
    with pytest.raises(ConfigError, match="--dtype: got 'int8'; expected auto, float32"):
        dtype(0, dtype="int8")


def test_a_card_that_is_not_there_is_told_for_this_machine_only() -> None:
    asked = Asked(flags={"device": "cuda"})
    with pytest.raises(
        ConfigError,
        match=r"device is cuda \(--device\) but no CUDA card is visible; use --device cpu",
    ):
        resolve(PIPELINE, asked, cards=0)
    assert resolve(PIPELINE, asked, cards=0, here=False).stages[1].gpu == 1


def test_a_card_for_a_stage_of_a_cpu_pipeline_is_a_contradiction() -> None:
    with pytest.raises(
        ConfigError, match=r"stage 'say': gpu is 1 but the device is cpu \(--device\); use"
    ):
        stages_of({"say.gpu": "1"}, on_cpu=True)
