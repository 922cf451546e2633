"""What every bench makes: cases, each a number of ours beside another's and a goal.

Knows how a case is judged, shown and kept. Knows nothing of what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of a bench."""

    case: str
    unit: str
    ours: float
    other: float | None = None
    other_name: str | None = None
    """Whom ours is compared with; None if with nobody. With a name and no `other`, it was left out
    of this run."""
    goal: float | None = None
    """Of the ratio, or of ours where there is nobody to compare with; None: only to be known."""
    better: Literal["more", "less"] = "more"
    low: float | None = None
    high: float | None = None
    """The least and the most of the rounds whose median `ours` is; None where it is not told."""

    @property
    def ratio(self) -> float | None:
        """How many times better ours is; None without the other's number."""
        if self.other is None:
            return None
        better, worse = self.ours, self.other
        if self.better == "less":
            better, worse = worse, better
        return better / worse if worse else float("inf")

    @property
    def skipped(self) -> bool:
        """Whether the other was left out of this run."""
        return self.other is None and self.other_name is not None

    @property
    def holds(self) -> bool | None:
        """Whether the goal is reached; never if it was not put to the test, None without one."""
        if self.goal is None:
            return None
        if self.skipped:
            return False
        if self.ratio is not None:
            return self.ratio >= self.goal
        return self.ours >= self.goal if self.better == "more" else self.ours <= self.goal

    def kept(self) -> dict[str, Any]:
        """The case as a bench's JSON has it."""
        spread = {} if self.low is None else {"low": self.low, "high": self.high}
        return {
            "case": self.case,
            "ours": self.ours,
            "other": self.other,
            "other_name": self.other_name,
            "unit": self.unit,
            "ratio": self.ratio,
            "goal": self.goal,
            "holds": self.holds,
            **spread,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A bench's result."""

    cases: tuple[Case, ...]
    notes: str = ""
    """More for a person to read."""


def table(cases: Sequence[Case]) -> str:
    """The cases for a person: a Markdown table."""
    rows = [["case", "ours", "other", "", "unit", "ratio", "goal", "holds"]]
    rows += [_row(case) for case in cases]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def unmet(cases: Sequence[Case]) -> list[str]:
    """A sentence for each goal that is not shown to be reached."""
    sentences = []
    for case in cases:
        if case.holds is False and case.skipped:
            sentences.append(f"{case.case}: skipped, {case.other_name} was not there")
        elif case.holds is False:
            measured = case.ours if case.ratio is None else case.ratio
            sentences.append(f"{case.case}: {_number(measured)}, the goal is {_goal(case)}")
    return sentences


def _row(case: Case) -> list[str]:
    verdict = {True: "yes", False: "no", None: ""}[case.holds]
    return [
        case.case,
        _ours(case),
        _number(case.other),
        case.other_name or "",
        case.unit,
        _number(case.ratio),
        _goal(case),
        "skipped" if case.skipped else verdict,
    ]


def _ours(case: Case) -> str:
    if case.low is None:
        return _number(case.ours)
    return f"{_number(case.ours)} ({_number(case.low)} to {_number(case.high)})"


def _goal(case: Case) -> str:
    if case.goal is None:
        return ""
    if case.other_name is not None:
        return f"{case.goal:.3g}x"
    return f"{'at least' if case.better == 'more' else 'at most'} {case.goal:g} {case.unit}".strip()


def _number(value: float | None) -> str:
    """Three digits that count, as far as there are any."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
