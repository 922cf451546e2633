"""docs/support.md claims nothing without naming a test or script that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "support.md").read_text()
PROOF = re.compile(r"`((?:packages|tests|bench)/[\w/.-]+\.py)`")


def rows(heading: str) -> list[list[str]]:
    """Cells of the body rows of the table under a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_proof_exists() -> None:
    proofs = PROOF.findall(TEXT)
    assert len(set(proofs)) > 5
    assert [proof for proof in proofs if not (ROOT / proof).is_file()] == []


def test_every_model_and_feature_has_the_four_claims() -> None:
    for heading in ("Models", "Features of Qwen3-Omni"):
        for row in rows(heading):
            assert len(row) == 5, row
            assert all(row), row
    assert {row[0] for row in rows("Models")} == {
        *(f"Qwen3-Omni-30B-A3B-{kind}" for kind in ("Instruct", "Thinking", "Captioner")),
        "Ming-flash-omni 2.0",
    }


def test_correct_is_claimed_with_its_proof_only() -> None:
    for row in rows("Features of Qwen3-Omni"):
        assert row[3] == "no" or PROOF.search(row[3]), row
