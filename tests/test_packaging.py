"""What the packages declare: few dependencies, one licence, and bounds that are tested."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))
}
OUTSIDER = ROOT / "tests" / "outsider"
SOURCES = {".py", ".md", ".toml", ".yaml", ".txt"}
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[(?P<extras>[\w,]+)\])?")


def declared(package: str, *extras: str) -> set[str]:
    """Distributions of others that a package and the packages of ours below it name."""
    project = PROJECTS[package]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    found: set[str] = set()
    for line in lines:
        named = REQUIREMENT.match(line)
        assert named is not None, line
        below = named["extras"].split(",") if named["extras"] else []
        mine = named["name"] in PROJECTS
        found |= declared(named["name"], *below) if mine else {named["name"]}
    return found


def test_core_has_at_most_five_dependencies() -> None:
    assert len(declared("omni-core")) <= 5


def test_server_and_qwen3_name_at_most_25_distributions() -> None:
    """`nox -s wheels` counts what an installer makes of them."""
    both = declared("omni-server") | declared("omni-qwen3")
    assert {"torch", "tokenizers", "fastapi", "msgspec"} <= both
    assert "transformers" not in both
    assert len(both) <= 25, sorted(both)


def test_the_lowest_versions_are_those_declared() -> None:
    script = [sys.executable, str(ROOT / "tests" / "lowest_versions.py")]
    written = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    stored = (ROOT / "constraints" / "lowest.txt").read_text()
    assert stored == written, "python tests/lowest_versions.py > constraints/lowest.txt"


@pytest.mark.parametrize("package", PROJECTS)
def test_every_package_carries_the_licence(package: str) -> None:
    assert PROJECTS[package]["license-files"] == ["LICENSE"]
    licence = (ROOT / "LICENSE").read_bytes()
    assert (ROOT / "packages" / package / "LICENSE").read_bytes() == licence


def test_packages_are_released_together() -> None:
    assert len({project["version"] for project in PROJECTS.values()}) == 1


def test_nothing_of_ours_names_the_outsider() -> None:
    """It is served by what any stranger could use."""
    outsider = tomllib.loads((OUTSIDER / "pyproject.toml").read_text())["project"]
    [word] = outsider["entry-points"]["omni.plugins"]
    folders = [ROOT / name for name in ("packages", "bench", "tests", "docs")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in SOURCES]
    files += [ROOT / "noxfile.py", ROOT / "README.md", ROOT / ".ci" / "run"]
    ours = [file for file in files if OUTSIDER not in file.parents]
    assert [file for file in ours if word in file.read_text()] == []
