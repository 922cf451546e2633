"""docs/configuration.md: its file loads, its output is real, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_core.config.draft import MAPPINGS
from omni_core.config.fields import PIPELINE_FIELDS, STAGE_FIELDS
from omni_core.config.refused import REFUSED
from omni_qwen3.pipeline import QWEN3_OMNI
from omni_server import cli
from omni_server.cli.configuration import SERVER_DEFAULTS

DOCS = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
TEXT = DOCS.read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(found)


def section(heading: str) -> str:
    return re.split(r"^#+ ", TEXT.partition(heading)[2], flags=re.MULTILINE)[0]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the file of the docs lies beside the tiny checkpoint's config that it names."""
    checkpoint = tmp_path / "checkpoints" / "qwen3-omni"
    checkpoint.mkdir(parents=True)
    (tmp_path / "omni.yaml").write_text(block("yaml").replace("model_path:", "# model_path:"))
    return tmp_path


def explained(directory: Path, *words: str) -> list[str]:
    file = str(directory / "omni.yaml")
    command = ["config", "explain", "--pipeline", QWEN3_OMNI.name, "--config", file, *words]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.exception
    return result.output.splitlines()


def test_the_explanation_is_what_the_file_of_the_docs_comes_to(directory: Path) -> None:
    real = [line.split() for line in explained(directory, "--thinker.max_running", "16")]
    shown = [line.split() for line in block("text").splitlines() if line.strip()]
    assert len(shown) > 15
    position = 0
    for line in shown:
        assert line in real[position:], " ".join(line)
        position = real.index(line, position) + 1


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("### Pipeline: ", ["model_path", *PIPELINE_FIELDS]),
        ("### Server: ", [*SERVER_DEFAULTS]),
        ("### Stages: ", [*STAGE_FIELDS, *MAPPINGS]),
    ],
)
def test_every_setting_has_a_row(heading: str, names: list[str]) -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", section(heading), re.MULTILINE)) == sorted(names)


def test_defaults_of_the_server_are_the_documented_ones() -> None:
    rows = section("### Server: ")
    for name, value in SERVER_DEFAULTS.items():
        if value is not None:
            shown = f"{value:g}" if isinstance(value, float) else value
            assert re.search(rf"\| `{name}` \| [\w ]+ \| `{shown}` \|", rows), name


def test_every_option_has_a_row() -> None:
    documented = set(re.findall(r"`(\w+)`", section("### Options of ")))
    stages = [stage for variant in QWEN3_OMNI.variants.values() for stage in variant]
    assert {option for stage in stages for option in stage.options} <= documented


def test_everything_refused_is_listed() -> None:
    listed = set(re.findall(r"`(\w+)`", section("## What is refused")))
    assert {name for item in REFUSED for name in (*item.names, *item.devices)} <= listed
