"""What core does with what plugins bring: checkpoints matched, machines checked, observers told."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from omni_core.coordinator.aborts import Silent
from omni_core.coordinator.observers import together
from omni_core.doctor import OURS, examine
from omni_core.errors import ConfigError, PluginError
from omni_core.extensions import Checkpoint, CheckSpec, Finding, MetricSpec, ObserverSpec
from omni_core.hookspecs import hookimpl
from omni_core.pipeline import Pipeline
from omni_core.plugins import KINDS, METRICS, OBSERVERS, Plugins
from omni_core.specs import PipelineConfig, Ref
from omni_core.testing import echo
from omni_core.types import Message, Request, RequestParams, TextPart

HERE = "test_plugin_hooks_parrot"


@pytest.fixture(autouse=True)
def parrot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that Refs of these tests name."""
    module = ModuleType(HERE)
    monkeypatch.setitem(sys.modules, HERE, module)
    return module


def plugin(**hooks: Any) -> ModuleType:
    """A plugin with these hooks: what they return, or functions."""
    module = ModuleType("made")
    for name, given in hooks.items():
        function = given if callable(given) else lambda given=given: given
        setattr(module, name, hookimpl(specname=name)(function))
    return module


def plugins(**modules: ModuleType) -> Plugins:
    registry = Plugins()
    for name, module in modules.items():
        registry.register(module, name)
    return registry


def renamed(name: str, *architectures: str) -> PipelineConfig:
    return dataclasses.replace(echo.PIPELINE, name=name, architectures=architectures)


def spells(name: str | None) -> Any:
    return lambda checkpoint: name


# -- match_checkpoint


def test_match_checkpoint_names_the_pipeline_of_a_directory_without_architectures(
    tmp_path: Path,
) -> None:
    seen: list[Checkpoint] = []

    def match(checkpoint: Checkpoint) -> str | None:
        seen.append(checkpoint)
        return "squawk" if "model.bin" in checkpoint.files else None

    registry = plugins(
        parrot=plugin(register_pipelines=[renamed("squawk")], match_checkpoint=match)
    )
    (tmp_path / "model.bin").touch()
    (tmp_path / "config.json").write_text('{"alignment_heads": 3}')
    assert registry.pipeline_at(str(tmp_path)).name == "squawk"
    [checkpoint] = seen
    assert checkpoint.files == ("config.json", "model.bin")
    assert checkpoint.config == {"alignment_heads": 3}
    (tmp_path / "model.bin").unlink()
    with pytest.raises(ConfigError, match="architectures"):
        registry.pipeline_at(str(tmp_path))


def test_match_checkpoint_decides_between_pipelines_of_one_architecture(tmp_path: Path) -> None:
    both = [renamed("a", "A"), renamed("b", "A")]
    (tmp_path / "config.json").write_text('{"architectures": ["A"]}')
    with pytest.raises(ConfigError, match="several pipelines"):
        plugins(one=plugin(register_pipelines=both)).pipeline_at(str(tmp_path))
    decided = plugins(one=plugin(register_pipelines=both, match_checkpoint=spells("b")))
    assert decided.pipeline_at(str(tmp_path)).name == "b"


def test_match_checkpoint_of_two_plugins_must_agree(tmp_path: Path) -> None:
    brought = plugin(register_pipelines=[renamed("a"), renamed("b")], match_checkpoint=spells("a"))
    agreed = plugins(one=brought, two=plugin(match_checkpoint=spells("a")), no=plugin())
    assert agreed.pipeline_at(str(tmp_path)).name == "a"
    clash = plugins(one=brought, two=plugin(match_checkpoint=spells("b")))
    with pytest.raises(ConfigError, match=r"(?=.*'a' by plugin 'one')(?=.*'b' by plugin 'two')"):
        clash.pipeline_at(str(tmp_path))


def test_match_checkpoint_must_name_a_pipeline(tmp_path: Path) -> None:
    wrong = plugin(register_pipelines=[renamed("squawk")], match_checkpoint=spells("squak"))
    with pytest.raises(
        PluginError, match=r"'one': match_checkpoint.*'squak'; did you mean 'squawk'"
    ):
        plugins(one=wrong).pipeline_at(str(tmp_path))
    with pytest.raises(PluginError, match=r"'one': match_checkpoint: ZeroDivisionError"):
        plugins(one=plugin(match_checkpoint=lambda checkpoint: 1 / 0)).pipeline_at(str(tmp_path))


# -- register_checks


def test_register_checks_are_looked_at_after_ours(parrot: ModuleType) -> None:
    parrot.beak = lambda: Finding(level="warning", text="no beak; grow one")  # type: ignore[attr-defined]
    spec = CheckSpec(name="beak", check=Ref(f"{HERE}:beak"))
    found = list(examine(plugins(parrot=plugin(register_checks=[spec]))))
    assert [(c.owner, c.name) for c in found[:-1]] == [("omni-core", spec.name) for spec in OURS]
    assert (found[-1].owner, found[-1].name) == ("parrot", "beak")
    assert found[-1].finding == Finding(level="warning", text="no beak; grow one")


@pytest.mark.parametrize(
    ("check", "said"), [("missing", "has no 'missing'"), ("none", "gave None")]
)
def test_register_checks_that_fail_have_found_a_problem(
    parrot: ModuleType, check: str, said: str
) -> None:
    parrot.none = lambda: None  # type: ignore[attr-defined]
    spec = CheckSpec(name="beak", check=Ref(f"{HERE}:{check}"))
    *_, checked = examine(plugins(parrot=plugin(register_checks=[spec])))
    assert checked.finding.level == "problem"
    assert said in checked.finding.text


def test_register_checks_may_not_take_our_names() -> None:
    spec = CheckSpec(name="compiler", check=Ref(f"{HERE}:check"))
    with pytest.raises(PluginError, match=r"'parrot' registers check 'compiler'.*core's own"):
        list(examine(plugins(parrot=plugin(register_checks=[spec]))))


# -- register_observers


class Diary(Silent):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def admitted(self, modalities: Any, waited_s: float) -> None:
        self.told.append(f"admitted {' '.join(modalities)}")

    def aborted(self, reason: str) -> None:
        self.told.append(f"aborted {reason}")

    def ready(self, process: str, stages: Any) -> None:
        self.told.append(f"{process} is ready: {' '.join(stages)}")

    def lost(self, process: str, stages: Any, cause: str) -> None:
        self.told.append(f"{process} is lost: {cause}")


class Faint(Silent):
    """Falls over at once."""

    def aborted(self, reason: str) -> None:
        raise RuntimeError("a cat")


async def test_register_observers_are_told_by_a_pipeline(
    parrot: ModuleType, tmp_path: Path
) -> None:
    diary = Diary()
    parrot.diary = lambda: diary  # type: ignore[attr-defined]
    spec = ObserverSpec(name="diary", build=Ref(f"{HERE}:diary"))
    registry = echo.plugins()
    registry.register(plugin(register_observers=[spec]), "parrot")
    pipeline = Pipeline.load(echo.write_checkpoint(tmp_path), plugins=registry, device="cpu")
    pipeline.observer = owners = Diary()
    async with pipeline:
        message = Message(role="user", content=(TextPart(text="Hello"),))
        params = RequestParams(modalities=("text",))
        async for _ in pipeline.generate(Request(messages=(message,), params=params)):
            pass
        served = diary.told[-1]
        os.kill(pipeline.health().stages["voice"].pid or 0, signal.SIGKILL)
        async with asyncio.timeout(30):
            while "voice@1 is ready: voice" not in diary.told:
                await asyncio.sleep(0.01)
    assert "front is ready: intake writer" in diary.told
    assert served == "admitted text"
    lost = diary.told.index("voice is lost: exit")
    assert lost < diary.told.index("voice@1 is ready: voice")
    assert owners.told == diary.told


def test_register_observers_that_raise_are_told_nothing_more(
    parrot: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    owners, diary = Diary(), Diary()
    parrot.faint, parrot.diary = Faint, lambda: diary  # type: ignore[attr-defined]
    built = [
        ("parrot", ObserverSpec(name=name, build=Ref(f"{HERE}:{name}")))
        for name in ("faint", "diary")
    ]
    everyone = together(owners, built)
    with caplog.at_level(logging.ERROR):
        everyone.aborted("disconnect")
        everyone.aborted("timeout")
    assert [record.getMessage() for record in caplog.records] == [
        "observer 'faint' of plugin 'parrot' failed; it is told nothing more"
    ]
    assert owners.told == diary.told == ["aborted disconnect", "aborted timeout"]


def test_register_observers_that_cannot_be_built_are_named() -> None:
    spec = ObserverSpec(name="diary", build=Ref(f"{HERE}:missing"))
    owned = plugins(parrot=plugin(register_observers=[spec])).owned(OBSERVERS)
    with pytest.raises(PluginError, match=r"plugin 'parrot': observer 'diary': .*missing"):
        together(Silent(), owned)


# -- all of them


def test_register_metrics_of_one_number_name_both_plugins() -> None:
    spec = MetricSpec(stat="feathers", help="Feathers lost")
    given = plugin(register_metrics=[spec])
    assert plugins(one=given).all(METRICS) == [spec]
    again = plugin(register_metrics=[spec])
    with pytest.raises(PluginError, match=r"(?=.*'one')(?=.*'two').* metric 'feathers'"):
        plugins(one=given, two=again).all(METRICS)
    with pytest.raises(PluginError, match="plugin 'one' registers metric 'feathers' twice"):
        plugins(one=plugin(register_metrics=[spec, spec])).all(METRICS)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.hook for kind in KINDS])
def test_every_hook_that_gives_nonsense_names_its_plugin(kind: Any) -> None:
    registry = plugins(parrot=plugin(**{kind.hook: ["nonsense"]}))
    wrong = rf"'parrot': {kind.hook} gave \['nonsense'\]; it must return {kind.type.__name__}s"
    with pytest.raises(PluginError, match=wrong):
        registry.listing()
