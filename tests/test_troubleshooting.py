"""docs/troubleshooting.md quotes messages and codes that are in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SOURCE = "\n".join(
    re.sub(r'"\n\s+f?"', "", path.read_text())  # a message over several lines is one
    for path in sorted((ROOT / "packages").glob("*/src/**/*.py"))
)


def first_cells(heading: str) -> list[str]:
    """What is quoted in the first column of a section's table."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return [quoted for row in rows for quoted in re.findall(r"`([^`]+)`", row)]


MESSAGES = [quoted for quoted in first_cells("It does not start") if quoted != "code"]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_quoted_word_for_word(message: str) -> None:
    assert message in SOURCE


def test_codes_have_the_statuses_that_are_said() -> None:
    codes = [quoted for quoted in first_cells("A request fails") if quoted != "code"]
    assert len(codes) > 10
    for code in codes:
        assert f'"{code}"' in SOURCE, code


@pytest.mark.parametrize("word", sorted(set(re.findall(r"`(omni_\w+)`", PAGE))))
def test_metrics_are_those_there_are(word: str) -> None:
    assert f"`{word}`" in (ROOT / "docs" / "metrics.md").read_text()


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`--([a-z][\w-]+)", PAGE))))
def test_flags_are_those_there_are(flag: str) -> None:
    outside = {"shm-size"}  # docker's
    name = flag.replace("-", "_")
    assert flag in outside or re.search(rf"\b{name}\b", SOURCE)
