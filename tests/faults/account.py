"""What a soak amounts to: how the requests ended, how soon faults were over, and what was left.

Knows the limits that make a run a good one. Reads nothing from the system by itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from ledger import End, Ledger
from traces import Holdings

MIB: Final = 2**20
FILES_SLACK: Final = 4
"""Connections of the last client and of whoever asked for /health may still be closing."""
RESIDENT_SLACK_MIB: Final = 16.0
"""Allocators keep what they had; a leak goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number, and what it may be at most; None where it is only to be known."""

    name: str
    value: float
    limit: float | None = None
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is within its limit."""
        return self.limit is None or self.value <= self.limit


@dataclass(slots=True, kw_only=True)
class Account:
    """Filled while a soak runs."""

    early: Holdings | None = None
    """Of the quiet server, once everything had been broken and mended."""
    late: Holdings | None = None
    """Of the quiet server after more load, with nothing broken."""
    slots: list[float] = field(default_factory=list)
    """Of shared memory, that were in use at either time."""
    held: dict[str, float] = field(default_factory=dict)
    """What stages still held when all clients had gone."""
    exit_code: int | None = None
    left: list[str] = field(default_factory=list)
    """What there was of the server after its end."""

    def rows(self, ledger: Ledger) -> list[Row]:
        """The whole account."""
        return [*_requests(ledger), *_faults(ledger), *self._resources(), *self._end()]

    def _resources(self) -> list[Row]:
        if self.early is None or self.late is None:
            return [Row(name="never looked at in quiet", value=1, limit=0)]
        early, late = self.early, self.late
        files = _growth(early.open_files, late.open_files)
        resident = _growth(early.resident_bytes, late.resident_bytes)
        others = set(early.processes) ^ set(late.processes)
        return [
            Row(name="held by stages", value=len(self.held), limit=0, detail=_list(self.held)),
            Row(name="processes too many or few", value=len(others), limit=0, detail=_list(others)),
            Row(name="zombies", value=late.zombies, limit=0),
            Row(name="socket files more", value=late.sockets - early.sockets, limit=0),
            Row(name="segments more", value=late.segments - early.segments, limit=0),
            Row(
                name="shared memory more, MiB",
                value=(late.segment_bytes - early.segment_bytes) / MIB,
                limit=RESIDENT_SLACK_MIB,
            ),
            Row(name="slots in use more", value=self.slots[1] - self.slots[0], limit=0),
            Row(name="open files more", value=max(files.values()), limit=FILES_SLACK),
            Row(
                name="resident memory more, MiB",
                value=max(resident.values()) / MIB,
                limit=RESIDENT_SLACK_MIB,
                detail=", ".join(f"{name} {by / MIB:+.1f}" for name, by in resident.items()),
            ),
        ]

    def _end(self) -> list[Row]:
        return [
            Row(
                name="ended otherwise than with 0 after SIGTERM",
                value=int(self.exit_code != 0),
                limit=0,
                detail=f"exit code {self.exit_code}",
            ),
            Row(name="left after the end", value=len(self.left), limit=0, detail=_list(self.left)),
        ]


def _requests(ledger: Ledger) -> list[Row]:
    counts = ledger.counts()
    lost = [f"{entry.question.name}: {entry.why}" for entry in ledger.lost()]
    return [
        Row(name="sent", value=len(ledger.entries)),
        Row(name=End.ANSWERED, value=counts[End.ANSWERED]),
        Row(name=End.FAILED, value=counts[End.FAILED], detail=_list(_causes(ledger, End.FAILED))),
        Row(name=End.LEFT, value=counts[End.LEFT], detail=_list(_causes(ledger, End.LEFT))),
        Row(name=End.LOST, value=counts[End.LOST], limit=0, detail=_list(lost)),
    ]


def _causes(ledger: Ledger, end: End) -> list[str]:
    causes = Counter(entry.why for entry in ledger.entries if entry.end is end)
    return [f"{why}: {count}" for why, count in causes.most_common()]


def _faults(ledger: Ledger) -> list[Row]:
    rows = []
    for process in sorted({fault.process for fault in ledger.faults}):
        faults = [fault for fault in ledger.faults if fault.process == process]
        told = [after for fault in faults for after in ledger.heard_after_s(fault)]
        ready = [fault.over_s - fault.began_s for fault in faults]
        rows += [
            Row(name=f"{process}: kills", value=len(faults)),
            _times(f"{process}: clients told, ms", [1e3 * after for after in told]),
            _times(f"{process}: ready again, s", ready),
        ]
    return rows


def _times(name: str, times: Sequence[float]) -> Row:
    """The longest, and the median for a reader."""
    detail = f"median {median(times):.3g} of {len(times)}" if times else "nobody asked"
    return Row(name=name, value=max(times, default=0.0), detail=detail)


def _growth(early: dict[str, int], late: dict[str, int]) -> dict[str, int]:
    return {name: late[name] - early[name] for name in late if name in early}


def _list(things: Any, most: int = 6) -> str:
    shown = [f"{thing}" for thing in things][:most]
    return ", ".join(shown)


def table(rows: Sequence[Row]) -> str:
    """For a person."""
    cells = [("", "number", "at most", "")]
    cells += [
        (row.name, f"{row.value:,.4g}", "" if row.limit is None else f"{row.limit:g}", row.detail)
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:>{widths[1]}}  {limit:>{widths[2]}}  {detail}".rstrip()
        for name, value, limit, detail in cells
    )


def kept(rows: Sequence[Row], **about: Any) -> str:
    """For a program: JSON."""
    numbers = {
        row.name: {"value": row.value, "limit": row.limit, "holds": row.holds, "detail": row.detail}
        for row in rows
    }
    return json.dumps({**about, "rows": numbers}, indent=2) + "\n"
