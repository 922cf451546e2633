"""Slots are lent to one loan at a time and all come back, whatever the order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from omni_core.relay.slots import Loan, Run, SlotTable

SLOTS = 12


def slots_of(loan: Loan) -> list[int]:
    return [slot for run in loan.runs for slot in range(run.start, run.end)]


class Books(RuleBasedStateMachine):
    """Against a model: the set of slots that are lent."""

    loans = Bundle("loans")

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(SLOTS)
        self.lent: set[int] = set()
        self.generation = 0

    @rule(target=loans, count=st.integers(1, SLOTS))
    def lend(self, count: int) -> Loan | None:
        loan = self.table.lend(count, "b")
        free = sorted(set(range(SLOTS)) - self.lent)
        assert (loan is None) == (count > len(free))
        if loan is None:
            return None
        slots = slots_of(loan)
        assert len(slots) == count
        assert self.lent.isdisjoint(slots)
        assert loan.generation > self.generation
        whole = [s for s in free if set(range(s, s + count)) <= set(free)]
        assert slots == (list(range(whole[0], whole[0] + count)) if whole else free[:count])
        assert len(loan.runs) == 1 or not whole
        self.generation = loan.generation
        self.lent.update(slots)
        return loan

    @rule(loan=consumes(loans))
    def take_back(self, loan: Loan | None) -> None:
        if loan is None:
            return
        self.table.take_back(loan)
        self.lent.difference_update(slots_of(loan))
        with pytest.raises(KeyError):
            self.table.take_back(loan)

    @invariant()
    def counts(self) -> None:
        assert self.table.used == len(self.lent)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=50, deadline=None)


@given(st.permutations(range(SLOTS)))
def test_slots_that_came_back_in_any_order_are_one_run_again(order: list[int]) -> None:
    table = SlotTable(SLOTS)
    loans = [table.lend(1, "b") for _ in range(SLOTS)]
    assert table.lend(1, "b") is None
    for place in order:
        loan = loans[place]
        assert loan is not None
        table.take_back(loan)
    whole = table.lend(SLOTS, "b")
    assert whole is not None
    assert whole.runs == (Run(0, SLOTS),)
