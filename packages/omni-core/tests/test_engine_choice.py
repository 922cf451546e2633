"""Which engine drives which stage: what was asked for, what a stage can, what a machine has."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from omni_core.config import Asked, ConfigFile, Resolved, resolve, to_doc
from omni_core.config.explain import document, to_yaml
from omni_core.engine.availability import SGLANG_RELEASE, Machine, TorchBuild, require
from omni_core.errors import ConfigError
from omni_core.specs import PipelineConfig, Ref, StageConfig
from omni_core.testing import echo

BUILD = Ref("omni_core.testing.echo:build_intake")
BOTH = ("torch", "sglang")
PIPELINE = PipelineConfig(
    name="talk",
    architectures=(),
    variants={
        "both": (
            StageConfig(
                name="think", factory=BUILD, next=("speak", "text"), gpu=0, ar_engines=BOTH
            ),
            StageConfig(name="speak", factory=BUILD, next=("voice",), gpu=0, ar_engines=BOTH),
            StageConfig(name="text", factory=BUILD, terminal="text"),
            StageConfig(name="voice", factory=BUILD, terminal="audio"),
        ),
    },
    default_variant="both",
    entry="think",
    describe=echo.describe,
)
FOR_CPU = TorchBuild(version="2.13.0+cpu", cuda=None)
FOR_CUDA = TorchBuild(version="2.14.1", cuda="13.0")
LAPTOP = Machine(torch=FOR_CPU, sglang=None, cards=0)
BUILDER = Machine(torch=FOR_CPU, sglang=SGLANG_RELEASE, cards=0)
SERVER = Machine(torch=FOR_CUDA, sglang=SGLANG_RELEASE, cards=2)
SERVER_WITHOUT = replace(SERVER, sglang=None)


def resolved(
    machine: Machine,
    *,
    pipeline: PipelineConfig = PIPELINE,
    here: bool = True,
    file: str = "",
    overrides: dict[str, str] | None = None,
    **flags: str,
) -> Resolved:
    parsed = ConfigFile.parse(file, name="omni.yaml")
    asked = Asked(flags=flags, overrides=overrides or {}, file=parsed)
    return resolve(pipeline, asked, cards=machine.cards, here=here, machine=machine)


def engines(found: Resolved) -> dict[str, str | None]:
    return {stage.name: stage.ar_engine for stage in found.stages}


def pipeline_for(speak: tuple[str, ...]) -> PipelineConfig:
    """The pipeline, whose speaking stage can be driven by these."""
    think, talk, *rest = PIPELINE.variants["both"]
    return replace(PIPELINE, variants={"both": (think, replace(talk, ar_engines=speak), *rest)})


@pytest.mark.parametrize(
    ("machine", "engine"),
    [(LAPTOP, "torch"), (BUILDER, "torch"), (SERVER_WITHOUT, "torch"), (SERVER, "sglang")],
)
def test_auto_is_sglang_on_cards_that_have_it(machine: Machine, engine: str) -> None:
    found = resolved(machine)
    assert found.settings["ar_engine"].value == engine
    assert engines(found) == {"think": engine, "speak": engine, "text": None, "voice": None}
    assert found.sources["think"]["ar_engine"] == "default: auto"


def test_auto_looks_at_the_device_of_each_stage() -> None:
    found = resolved(SERVER, overrides={"speak.gpu": "none"})
    assert engines(found)["think"] == "sglang"
    assert engines(found)["speak"] == "torch"


def test_auto_leaves_a_stage_to_torch_that_sglang_cannot_drive() -> None:
    found = resolved(SERVER, pipeline=pipeline_for(("torch",)))
    assert engines(found)["think"] == "sglang"
    assert engines(found)["speak"] == "torch"


@pytest.mark.parametrize(("stage", "other"), [("think", "speak"), ("speak", "think")])
def test_one_stage_can_have_another_engine_than_the_pipeline(stage: str, other: str) -> None:
    found = resolved(BUILDER, ar_engine="sglang", overrides={f"{stage}.ar_engine": "torch"})
    assert (engines(found)[stage], engines(found)[other]) == ("torch", "sglang")
    assert found.sources[stage]["ar_engine"] == f"--{stage}.ar_engine"
    assert found.sources[other]["ar_engine"] == "--ar-engine"
    turned = resolved(BUILDER, file=f"stages: {{{stage}: {{ar_engine: sglang}}}}")
    assert (engines(turned)[stage], engines(turned)[other]) == ("sglang", "torch")


def test_a_stage_process_is_told_its_engine() -> None:
    found = resolved(BUILDER, overrides={"think.ar_engine": "sglang"})
    docs = [to_doc(stage, devices=("cpu",), dtype="float32", serves={}) for stage in found.stages]
    assert [doc.ar_engine for doc in docs] == ["sglang", "torch", "torch", "torch"]


def test_an_exported_choice_is_the_same_on_any_machine() -> None:
    exported = to_yaml(document(resolved(SERVER, overrides={"speak.ar_engine": "torch"})))
    again = resolved(LAPTOP, here=False, file=exported)
    assert engines(again) == {"think": "sglang", "speak": "torch", "text": None, "voice": None}


@pytest.mark.parametrize(
    ("machine", "device", "reason"),
    [
        (LAPTOP, "cpu", f"sglang {SGLANG_RELEASE} is not installed; docs/engines.md says how to"),
        (replace(BUILDER, sglang="0.5.16"), "cpu", "sglang 0.5.16 is installed, not 0.5"),
        (SERVER, "cpu", "beside a torch built for CUDA it runs on cards only; use the torch"),
        (replace(SERVER, torch=FOR_CPU), "cuda", "torch 2.13.0+cpu is built without CUDA; install"),
        (SERVER_WITHOUT, "cuda", f"sglang {SGLANG_RELEASE} is not installed; docs/engines.md"),
    ],
)
def test_an_engine_that_is_not_here_is_refused_for_each_stage(
    machine: Machine, device: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(machine, ar_engine="sglang", device=device)
    assert len(caught.value.problems) == 2
    for stage, problem in zip(("think", "speak"), caught.value.problems, strict=True):
        assert problem.startswith(
            f"stage '{stage}': ar_engine is sglang (--ar-engine) but {reason}"
        )


def test_a_stage_that_sglang_cannot_drive_is_refused_when_it_is_asked_to() -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(BUILDER, pipeline=pipeline_for(("torch",)), ar_engine="sglang")
    assert caught.value.problems == (
        "stage 'speak': ar_engine is sglang but the stage can only be driven by torch "
        "(--ar-engine); use --speak.ar_engine torch",
    )


def test_a_machine_says_what_each_engine_can_do_there() -> None:
    for machine, places in (
        (LAPTOP, {"torch": ["cpu"], "sglang": []}),
        (BUILDER, {"torch": ["cpu"], "sglang": ["cpu"]}),
        (SERVER, {"torch": ["cuda", "cpu"], "sglang": ["cuda"]}),
        (Machine(torch=None, sglang=None, cards=1), {"torch": [], "sglang": []}),
    ):
        reports = {report.capabilities.name: report for report in machine.reports()}
        assert places == {
            name: [place for place, reason in report.obstacles.items() if reason is None]
            for name, report in reports.items()
        }
    assert (
        reports["torch"].obstacles["cpu"]
        == "torch is not installed; pip install 'omni-core[torch]'"
    )


def test_a_stage_can_require_its_engine() -> None:
    machine = Machine.here()
    for report in machine.reports():
        name, reason = report.capabilities.name, report.obstacles["cpu"]
        if reason is None:
            require(name, "think", "cpu")
        else:
            with pytest.raises(ConfigError, match=f"stage 'think': ar_engine is {name} but"):
                require(name, "think", "cpu")


def test_the_build_of_torch_is_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    assert TorchBuild.here() == TorchBuild(version=torch.__version__, cuda=torch.version.cuda)


def test_the_build_of_torch_is_read_once() -> None:
    """Threads that answer for it must not run its file, which is no work for two at a time."""
    pytest.importorskip("torch")
    assert TorchBuild.here() is TorchBuild.here()


def test_the_extra_names_the_release() -> None:
    file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
    assert f"sglang=={SGLANG_RELEASE}" in extras["sglang"]
