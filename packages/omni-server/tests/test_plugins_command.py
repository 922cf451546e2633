"""`omni plugins` as a command, with plugins installed beside it, good ones and bad ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from omni_server import cli

GOOD = """
from dataclasses import replace
from omni_core.hookspecs import hookimpl
from omni_core.testing.echo import PIPELINE

@hookimpl
def register_pipelines():
    return [replace(PIPELINE, name={name!r}, architectures=({name!r},))]
"""
OTHERS = """
from omni_core.extensions import MetricSpec, RouteSpec
from omni_core.hookspecs import hookimpl
from omni_core.specs import Ref

@hookimpl
def register_routes():
    feathers = Ref("omni_parrot:feathers")
    return [RouteSpec(path="/feathers", endpoint=feathers, methods=("GET", "POST"))]

@hookimpl
def register_metrics():
    return [MetricSpec(stat="feathers", help="Feathers lost")]
"""
MISSPELT = GOOD.replace("register_pipelines", "register_pipeline")
WRONG_ARGUMENT = GOOD.replace("register_pipelines()", "register_pipelines(model)")

Site = Callable[..., None]


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Omni = Callable[..., Ended]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Install a distribution with one plugin: site(plugin, source, distribution)."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(plugin: str, source: str, distribution: str = "") -> None:
        name = distribution or f"omni-{plugin}"
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5")
        (info / "entry_points.txt").write_text(f"[omni.plugins]\n{plugin} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


@pytest.fixture
def omni(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Omni:
    """Run the command's entry point: omni(*arguments, allowed="a,b")."""

    def run(*arguments: str, allowed: str) -> Ended:
        monkeypatch.setenv("OMNI_PLUGINS", allowed)
        monkeypatch.setattr("sys.argv", ["omni", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_a_process_finds_what_is_installed(site: Site, tmp_path: Path) -> None:
    site("parrot", GOOD.format(name="squawk"))
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("OMNI_PLUGINS", None)
    command = [sys.executable, "-m", "omni_server", "plugins", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert "parrot" in {plugin["name"] for plugin in json.loads(ended.stdout)}


def test_listed_for_people_and_for_programs(site: Site, omni: Omni) -> None:
    site("parrot", GOOD.format(name="squawk"))
    assert omni("plugins", allowed="parrot").out.split() == [
        "parrot",
        "omni-parrot",
        "1.5",
        "squawk",
    ]
    assert json.loads(omni("plugins", "--json", allowed="parrot").out) == [
        {
            "name": "parrot",
            "distribution": "omni-parrot",
            "version": "1.5",
            "hooks": ["register_pipelines"],
            "pipelines": [
                {
                    "name": "squawk",
                    "architectures": ["squawk"],
                    "default_variant": "speech",
                    "variants": {"speech": ["intake", "writer", "voice"]},
                }
            ],
            "others": [],
            "broken": None,
        }
    ]


def test_an_empty_allow_list_loads_none(site: Site, omni: Omni) -> None:
    site("broken", "import no_such_module")
    assert "no plugins" in omni("plugins", allowed="").out
    assert json.loads(omni("plugins", "--json", allowed="").out) == []


def test_a_broken_plugin_is_left_out_by_the_allow_list(site: Site, omni: Omni) -> None:
    site("parrot", GOOD.format(name="squawk"))
    site("broken", "import no_such_module")
    assert omni("plugins", allowed="parrot,broken").status == 1
    assert "squawk" in omni("plugins", allowed="parrot").out


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}['key']", "KeyError: 'key'"),
        ("def half(", "SyntaxError"),
        (MISSPELT.format(name="squawk"), "unknown hook 'register_pipeline'"),
        (WRONG_ARGUMENT.format(name="squawk"), "model"),
        (GOOD.format(name="squawk").replace("return [", "return [1 / 0, "), "ZeroDivisionError"),
        (GOOD.format(name="squawk").replace("[replace", "len([replace") + ")", "'int' object"),
    ],
)
def test_a_bad_plugin_is_an_error_that_names_it_and_the_cause(
    site: Site, omni: Omni, source: str, cause: str
) -> None:
    site("macaw", source)
    ended = omni("plugins", allowed="macaw")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("error: plugin 'macaw'")
    assert cause in ended.err
    assert "omni_core" not in ended.err.replace("omni_core.hookspecs", "")


def test_a_broken_plugin_is_listed_when_it_is_left_out(
    site: Site, omni: Omni, monkeypatch: pytest.MonkeyPatch
) -> None:
    site("macaw", "import no_such_module")
    site("parrot", OTHERS)
    monkeypatch.setenv("OMNI_SKIP_BROKEN_PLUGINS", "1")
    ended = omni("plugins", allowed="macaw,parrot")
    parrot, macaw = ended.out.splitlines()
    assert ended.status == 0
    assert "route GET /feathers, route POST /feathers, metric feathers" in parrot
    assert "left out: plugin 'macaw' (omni_macaw of omni-macaw) fails to import" in macaw
    parrot, macaw = json.loads(omni("plugins", "--json", allowed="macaw,parrot").out)
    assert parrot["hooks"] == ["register_metrics", "register_routes"]
    assert parrot["others"][-1] == {"kind": "metric", "name": "feathers"}
    assert "ModuleNotFoundError" in macaw["broken"]


def test_two_pipelines_of_one_name_name_both_plugins(site: Site, omni: Omni) -> None:
    site("macaw", GOOD.format(name="squawk"))
    site("parrot", GOOD.format(name="squawk"))
    error = omni("plugins", allowed="macaw,parrot").err
    assert "plugins 'macaw' and 'parrot' both register pipeline 'squawk'" in error


def test_two_plugins_of_one_name_name_both_distributions(site: Site, omni: Omni) -> None:
    site("parrot", GOOD.format(name="squawk"))
    site("parrot", GOOD.format(name="screech"), "omni-macaw")
    error = omni("plugins", allowed="parrot").err
    assert "two plugins are named 'parrot'" in error
    assert "omni-parrot" in error
    assert "omni-macaw" in error


def test_an_unknown_name_on_the_allow_list_is_an_error(site: Site, omni: Omni) -> None:
    site("parrot", GOOD.format(name="squawk"))
    ended = omni("plugins", allowed="parot")
    assert ended.status == 1
    assert "OMNI_PLUGINS: unknown plugin 'parot'; did you mean 'parrot'?" in ended.err
