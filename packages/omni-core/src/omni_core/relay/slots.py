"""Which slots of a pool are free, and who has the others: arithmetic, no memory.

Slots are lent lowest first, so that a pool touches no more of its file than it needs, and in one
run where there is one that is long enough. Knows numbers. Knows nothing of bytes, files or waiting.
"""

from __future__ import annotations

import bisect
import itertools
from typing import NamedTuple


class Run(NamedTuple):
    """Neighbouring slots."""

    start: int
    slots: int

    @property
    def end(self) -> int:
        """The slot behind the last."""
        return self.start + self.slots


class Loan(NamedTuple):
    """Slots that a process has. No two loans of a pool have the same generation."""

    generation: int
    runs: tuple[Run, ...]
    target: str
    head: int
    """The slot whose words in the pool's header stand for the whole loan."""


class SlotTable:
    """The books of one pool."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._free = [Run(0, slots)]  # sorted, with lent slots between any two
        self._lent: set[int] = set()
        self._generations = itertools.count(1)

    def lend(self, count: int, target: str) -> Loan | None:
        """`count` slots, in the lowest run that holds them all, else in several; None if there are
        too few."""
        if count > self.slots - self.used:
            return None
        runs = self._whole(count) or self._pieces(count)
        self.used += count
        loan = Loan(next(self._generations), runs, target, runs[0].start)
        self._lent.add(loan.generation)
        return loan

    def take_back(self, loan: Loan) -> None:
        """Free the slots; KeyError if they were taken back before."""
        self._lent.remove(loan.generation)
        for run in loan.runs:
            self._insert(run)
            self.used -= run.slots

    def _whole(self, count: int) -> tuple[Run, ...]:
        for place, run in enumerate(self._free):
            if run.slots >= count:
                rest = Run(run.start + count, run.slots - count)
                self._free[place : place + 1] = [rest] if rest.slots else []
                return (Run(run.start, count),)
        return ()

    def _pieces(self, count: int) -> tuple[Run, ...]:
        taken: list[Run] = []
        while count:
            run = self._free.pop(0)
            part = min(count, run.slots)
            taken.append(Run(run.start, part))
            if part < run.slots:
                self._free.insert(0, Run(run.start + part, run.slots - part))
            count -= part
        return tuple(taken)

    def _insert(self, run: Run) -> None:
        place = bisect.bisect(self._free, run)
        start, end = run.start, run.end
        after, before = place, place
        if place < len(self._free) and self._free[place].start == end:
            end, after = self._free[place].end, place + 1
        if place and self._free[place - 1].end == start:
            start, before = self._free[place - 1].start, place - 1
        self._free[before:after] = [Run(start, end - start)]
