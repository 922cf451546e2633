"""docs/writing-a-plugin.md, done as it says: its files written, its commands run, its tests passed.

Not run is `pip install`: what it would do is done here without an index.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "writing-a-plugin.md").read_text()
FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
READY = "Omni is ready on "
SERVE = "omni serve"
PORT = "8000"
WITHIN_S = 120


@dataclass(frozen=True)
class Package:
    """The package that the page writes."""

    directory: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """What a command prints; its words if it fails."""
        ended = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True,
            timeout=WITHIN_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    directory: Path = tmp_path_factory.mktemp("morse")
    for name, content in FILE.findall(PAGE):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    site, programs = directory / "site", directory / "bin"
    _install(directory, site)
    programs.mkdir()
    omni = programs / "omni"
    omni.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m omni_server "$@"\n')
    omni.chmod(0o755)
    path = [str(directory / "src"), str(site), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PATH": os.pathsep.join(
            (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
        ),
        "OMNI_PLUGINS": "morse",
    }
    return Package(directory, environment)


def _install(directory: Path, site: Path) -> None:
    """The metadata that pip would make of pyproject.toml."""
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {one}\n" for one in project["dependencies"])
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head + needs)
    [(group, points)] = project["entry-points"].items()
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")


def blocks(language: str) -> list[str]:
    """Blocks of the page in a language that are not files."""
    files = {content for _, content in FILE.findall(PAGE)}
    return [text for kind, text in BLOCK.findall(PAGE) if kind == language and text not in files]


def commands() -> list[str]:
    """Every line that the page has a shell run, but for pip's and the server's."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if not line.startswith(("pip install", SERVE))]


def test_the_page_has_what_this_test_runs() -> None:
    names = [name for name, _ in FILE.findall(PAGE)]
    assert len(names) == len(set(names)) == 9
    assert {kind for kind, _ in BLOCK.findall(PAGE)} == {"toml", "python", "sh", "text"}
    assert len(blocks("python")) == 1
    assert len(blocks("toml")) == 0
    assert "pytest -q" in commands()


def test_its_commands_do_what_it_says(package: Package) -> None:
    printed = "".join(package.run("sh", "-c", line) for line in commands())
    listing, _ = blocks("text")
    assert listing in printed
    assert " passed" in printed
    assert "speller" in printed


@pytest.fixture
def served(package: Package) -> Iterator[str]:
    """The server of the page, on a free port; its URL."""
    [line] = [line for block in blocks("sh") for line in block.splitlines() if SERVE in line]
    assert line.endswith(f"--port {PORT}")
    checkpoint = package.directory / "telegraph"
    if not checkpoint.exists():
        package.run("omni", "tiny", "morse", str(checkpoint))
    command = ["sh", "-c", "exec " + line.replace(f"--port {PORT}", "--port 0")]
    with subprocess.Popen(
        command, cwd=package.directory, env=package.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = next(line for line in process.stdout if READY in line)
        yield url.partition(READY)[2].strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0


def test_its_client_hears_what_it_says(package: Package, served: str) -> None:
    [client] = blocks("python")
    assert f"127.0.0.1:{PORT}" in client
    source = client.replace(f"http://127.0.0.1:{PORT}", served)
    _, heard = blocks("text")
    assert package.run(sys.executable, "-c", source) == heard
