"""Discovery, provenance and clashes of plugins, with entry points of a made-up distribution."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import hookimpl
from omni_core.plugins import ALLOW_LIST, SKIP_BROKEN, Plugins
from omni_core.specs import PipelineConfig
from omni_core.testing import echo

PLUGIN = """
from dataclasses import replace
from omni_core.hookspecs import hookimpl
from omni_core.testing.echo import PIPELINE

@hookimpl
def register_pipelines():
    return [replace(PIPELINE, name={name!r}, architectures=({architecture!r},))]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a distribution with one plugin on the path: install(plugin, source, distribution)."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOW_LIST, "parrot")

    def write(plugin: str, source: str, distribution: str = "omni-parrot") -> None:
        package = distribution.replace("-", "_")
        module = f"{package}_{plugin}"
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{package}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5")
        (info / "entry_points.txt").write_text(f"[omni.plugins]\n{plugin} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return write


def module(*pipelines: PipelineConfig) -> ModuleType:
    made = ModuleType("made")

    @hookimpl
    def register_pipelines() -> list[PipelineConfig]:
        return list(pipelines)

    made.register_pipelines = register_pipelines  # type: ignore[attr-defined]
    return made


def renamed(name: str, *architectures: str) -> PipelineConfig:
    return dataclasses.replace(echo.PIPELINE, name=name, architectures=architectures)


def test_an_installed_plugin_is_found_and_listed(install: Callable[..., None]) -> None:
    install("parrot", PLUGIN.format(name="squawk", architecture="Parrot"))
    plugins = Plugins().discover()
    assert list(plugins.pipelines()) == ["squawk"]
    assert plugins.provenance("squawk") == "parrot"
    [info] = plugins.listing()
    assert (info.name, info.distribution, info.version) == ("parrot", "omni-parrot", "1.5")
    assert info.hooks == ("register_pipelines",)
    assert [pipeline.name for pipeline in info.pipelines] == ["squawk"]


def test_the_allow_list_decides(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("parrot", PLUGIN.format(name="squawk", architecture="Parrot"))
    monkeypatch.setenv(ALLOW_LIST, "")
    assert Plugins().discover().pipelines() == {}
    monkeypatch.setenv(ALLOW_LIST, " parrot , ")
    assert list(Plugins().discover().pipelines()) == ["squawk"]
    monkeypatch.setenv(ALLOW_LIST, "parot")
    with pytest.raises(PluginError, match="unknown plugin 'parot'; did you mean 'parrot'"):
        Plugins().discover()


def test_unset_means_all(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("parrot", PLUGIN.format(name="squawk", architecture="Parrot"))
    monkeypatch.delenv(ALLOW_LIST)
    assert "squawk" in Plugins().discover().pipelines()


def test_a_plugin_that_fails_to_import_is_named_with_its_own_traceback(
    install: Callable[..., None],
) -> None:
    install("parrot", "def wake():\n    import no_such_module_anywhere\nwake()")
    with pytest.raises(
        PluginError, match=r"'parrot' \(omni_parrot_parrot of omni-parrot\).*no_such"
    ) as caught:
        Plugins().discover()
    first, *lines = caught.value.message.splitlines()
    assert ALLOW_LIST in first
    assert SKIP_BROKEN in first
    frames = [line.strip().partition(", ")[2] for line in lines if line.startswith("  File")]
    assert frames == ["line 3, in <module>", "line 2, in wake"]
    assert "omni_parrot_parrot.py" in lines[1]


@pytest.mark.parametrize(
    "source", ["import no_such_module_anywhere", PLUGIN.replace("register_", "regster_")]
)
def test_a_broken_plugin_is_named_and_left_out_on_request(
    install: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str,
) -> None:
    install("parrot", source.format(name="squawk", architecture="Parrot"))
    install("owl", PLUGIN.format(name="hoot", architecture="Owl"), "omni-owl")
    monkeypatch.setenv(ALLOW_LIST, "parrot,owl")
    for unset in ("", "0"):
        monkeypatch.setenv(SKIP_BROKEN, unset)
        with pytest.raises(PluginError, match="'parrot'"):
            Plugins().discover()
    monkeypatch.setenv(SKIP_BROKEN, "1")
    plugins = Plugins().discover()
    assert list(plugins.pipelines()) == ["hoot"]
    [owl, parrot] = plugins.listing()
    assert (owl.name, owl.broken) == ("owl", "")
    assert (parrot.name, parrot.distribution, parrot.version) == ("parrot", "omni-parrot", "1.5")
    [said] = [record.getMessage() for record in caplog.records]
    assert said == f"left out: {parrot.broken}"
    assert "plugin 'parrot'" in said


def test_two_plugins_of_one_name_are_both_named(install: Callable[..., None]) -> None:
    install("parrot", PLUGIN.format(name="a", architecture="A"))
    install("parrot", PLUGIN.format(name="b", architecture="B"), "omni-macaw")
    with pytest.raises(PluginError, match="two plugins are named 'parrot'") as caught:
        Plugins().discover()
    assert "omni_parrot_parrot of omni-parrot" in caught.value.message
    assert "omni_macaw_parrot of omni-macaw" in caught.value.message


def test_register_pipelines_of_one_name_names_both_plugins() -> None:
    plugins = Plugins()
    plugins.register(module(renamed("same")), "one")
    plugins.register(module(renamed("same")), "two")
    with pytest.raises(PluginError, match=r"(?=.*'one')(?=.*'two').*pipeline 'same'"):
        plugins.pipelines()


def test_a_misspelt_hook_is_named() -> None:
    wrong = ModuleType("wrong")

    @hookimpl
    def register_pipeline() -> None: ...

    wrong.register_pipeline = register_pipeline  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match=r"'macaw'.*register_pipeline"):
        Plugins().register(wrong, "macaw")


def test_a_hook_with_strange_arguments_is_named() -> None:
    wrong = ModuleType("wrong")

    @hookimpl
    def register_pipelines(model: str) -> None: ...

    wrong.register_pipelines = register_pipelines  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match=r"(?s)'macaw'.*model"):
        Plugins().register(wrong, "macaw")


def test_a_name_is_registered_once() -> None:
    plugins = Plugins()
    plugins.register(module(), "one")
    with pytest.raises(PluginError, match="plugin 'one'"):
        plugins.register(module(), "one")


@pytest.mark.parametrize("given", ["'not a pipeline'", "[1 / 0]", "None"])
def test_a_hook_that_gives_nonsense_names_its_plugin(
    install: Callable[..., None], given: str
) -> None:
    source = (
        "from omni_core.hookspecs import hookimpl\n"
        f"@hookimpl\ndef register_pipelines():\n    return {given}\n"
    )
    install("parrot", source)
    with pytest.raises(PluginError, match="plugin 'parrot': register_pipelines"):
        Plugins().discover().pipelines()


def test_pipeline_for_finds_by_architecture() -> None:
    plugins = Plugins()
    plugins.register(module(renamed("a", "A1", "A2"), renamed("b", "B")), "both")
    assert plugins.pipeline_for(["Other", "A2"]).name == "a"
    assert plugins.pipeline_for(["B"]).name == "b"


def test_pipeline_for_says_what_is_served() -> None:
    plugins = Plugins()
    with pytest.raises(ConfigError, match=r"serves architecture X; .*nothing \(install a model"):
        plugins.pipeline_for(["X"])
    plugins.register(module(renamed("a", "A1", "A2")), "one")
    with pytest.raises(ConfigError, match="installed plugins serve: A1, A2"):
        plugins.pipeline_for(["X"])
    with pytest.raises(ConfigError, match=r"serves architecture \(none\)"):
        plugins.pipeline_for([])


def test_two_pipelines_for_one_architecture_are_refused() -> None:
    plugins = Plugins()
    plugins.register(module(renamed("a", "A")), "one")
    plugins.register(module(renamed("b", "A")), "two")
    with pytest.raises(ConfigError, match=r"(?=.*'a' of plugin 'one')(?=.*'b' of plugin 'two')"):
        plugins.pipeline_for(["A"])


def test_provenance_suggests() -> None:
    plugins = Plugins()
    plugins.register(module(renamed("squawk")), "one")
    with pytest.raises(ConfigError, match="unknown pipeline 'squak'; did you mean 'squawk'"):
        plugins.provenance("squak")
