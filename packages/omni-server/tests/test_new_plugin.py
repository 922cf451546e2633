"""`omni new-plugin`: what it writes works as it is, and it spoils nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_core.errors import ConfigError
from omni_server import cli
from omni_server.cli.new_plugin import MOST_LETTERS, checked_name, write


def test_what_is_written_passes_its_tests_at_once(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["new-plugin", "echo-bird", "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "omni-echo-bird"
    assert f"wrote {folder}" in result.output
    install(folder, "omni-echo-bird", "echo-bird = omni_echo_bird")
    path = os.pathsep.join([str(folder / "src"), *filter(None, sys.path)])
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder))
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    skips = [line for line in ran.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("clones no voices" in skip for skip in skips), skips


def install(folder: Path, name: str, entry_point: str) -> None:
    """As an installer would, into the folder of the sources: on nobody's path but the test's."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {project['version']}"]
    metadata += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    installed = folder / "src" / f"{name.replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("\n".join(metadata) + "\n")
    (installed / "entry_points.txt").write_text(f"[omni.plugins]\n{entry_point}\n")


def test_every_file_is_named_and_filled_in(tmp_path: Path) -> None:
    folder = write("omni-night-owl2", tmp_path)
    assert folder == tmp_path / "omni-night-owl2"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    package = "src/omni_night_owl2"
    assert files == {
        *(".gitignore", "README.md", "noxfile.py", "pyproject.toml"),
        *(f"{package}/{name}.py" for name in ("__init__", "checkpoint", "voice", "writer")),
        f"{package}/py.typed",
        *("tests/test_laws.py", "tests/test_stages.py"),
    }
    text = "".join((folder / file).read_text() for file in files)
    assert "NightOwl2" in text
    assert not any(left in text for left in ("__PLUGIN__", "__PACKAGE__", "__TITLE__"))


@pytest.mark.parametrize(
    "name", ["", "omni-", "Parrot", "2fast", "a--b", "a_b", "-a", "a-", "../a", "a/b", "a b", "é"]
)
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a plugin's name"):
        write(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_name_is_not_too_long_and_not_taken() -> None:
    assert checked_name("a" * MOST_LETTERS) == "a" * MOST_LETTERS
    with pytest.raises(ConfigError, match="up to"):
        checked_name("a" * (MOST_LETTERS + 1))
    with pytest.raises(ConfigError, match="omni_server is a package that is installed"):
        checked_name("server")


@pytest.mark.parametrize("as_file", [False, True])
def test_nothing_is_ever_overwritten(tmp_path: Path, as_file: bool) -> None:
    there = tmp_path / "omni-echo"
    if as_file:
        there.write_text("mine")
    else:
        there.mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        write("echo", tmp_path)
    assert there.read_text() == "mine" if as_file else not list(there.iterdir())
