"""docs/engines.md and the pins of SGLang: one release, real output, a complete table."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from omni_core.engine.availability import SGLANG_RELEASE, Machine, TorchBuild
from omni_qwen3.pipeline import AR_OPTIONS
from omni_server.cli.engines import lines

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "engines.md").read_text()
RELEASES = re.compile(r"\b0\.5\.\d+(?:\.post\d+)?\b")


def pins(file: str) -> dict[str, str]:
    """{distribution: version} of a constraints file; an override may have a marker."""
    found = re.findall(
        r"^([\w.-]+)==(\S+)", (ROOT / "constraints" / file).read_text(), re.MULTILINE
    )
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_release_is_the_same_everywhere() -> None:
    assert {*RELEASES.findall(TEXT)} == {SGLANG_RELEASE}
    assert pins("sglang-cpu.txt")["sglang"] == SGLANG_RELEASE
    for package in ("omni-core", "omni-qwen3"):
        file = ROOT / "packages" / package / "pyproject.toml"
        extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
        assert f"sglang=={SGLANG_RELEASE}" in extras["sglang"]


def test_what_both_sets_of_pins_name_is_pinned_alike() -> None:
    others = pins("cpu.txt")
    for name, version in pins("sglang-cpu.txt").items():
        assert others.get(name, version) == version, name


def test_the_output_shown_is_that_of_a_laptop() -> None:
    [shown] = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    torch = TorchBuild(version=f"{pins('cpu.txt')['torch']}+cpu", cuda=None)
    assert shown.splitlines() == [*lines(Machine(torch=torch, sglang=None, cards=0))]


@pytest.mark.parametrize("option", AR_OPTIONS)
def test_every_option_of_an_engine_is_in_the_table(option: str) -> None:
    assert f"`{option}`" in TEXT


def test_every_file_the_docs_install_from_is_there() -> None:
    for file in re.findall(r"constraints/[\w.-]+", TEXT):
        assert (ROOT / file).is_file(), file
