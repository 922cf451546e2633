"""The account of a soak: how its server ended decides whether it was a good one."""

from __future__ import annotations

import pytest

from account import Account
from ledger import Ledger


@pytest.mark.parametrize(
    ("code", "good"), [(0, True), (1, False), (-9, False), (-11, False), (None, False)]
)
def test_a_server_ends_with_0(code: int | None, good: bool) -> None:
    rows = Account(exit_code=code).rows(Ledger({}))
    [row] = [row for row in rows if "SIGTERM" in row.name]
    assert row.holds is good
    assert str(code) in row.detail


def test_what_is_left_of_a_server_is_held_against_it() -> None:
    rows = Account(exit_code=0, left=["process writer (7)"]).rows(Ledger({}))
    [row] = [row for row in rows if row.name == "left after the end"]
    assert not row.holds
