"""What a new --config file changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omni_router.errors import ConfigError
from omni_router.reload import changes, reread_or_none
from omni_router.settings import Settings, WorkerSpec

A = WorkerSpec(url="http://a", name="a")
B = WorkerSpec(url="http://b", name="b")
C = WorkerSpec(url="http://c", name="c")


def test_workers_come_go_and_change() -> None:
    heavier = WorkerSpec(url="http://b", name="b", weight=2.0, max_in_flight=7)
    found = changes(Settings(workers=(A, B)), Settings(workers=(heavier, C)))
    assert found.added == (C,)
    assert found.adjusted == (heavier,)
    assert found.removed == ("a",)
    assert found.refused == ()


def test_the_same_file_changes_nothing() -> None:
    found = changes(Settings(workers=(A, B)), Settings(workers=(B, A)))
    assert (found.added, found.adjusted, found.removed, found.refused) == ((), (), (), ())


def test_what_needs_a_new_start_is_told() -> None:
    moved = WorkerSpec(url="http://elsewhere", name="a")
    old = Settings(workers=(A,))
    found = changes(old, replace(old, workers=(moved,), retries=0))
    assert found.added == found.adjusted == ()
    assert found.removed == ()
    assert found.refused == (
        "worker a stays at http://a; give the one at http://elsewhere another name",
        "retries changes with a new start only",
    )


def test_a_file_that_cannot_be_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def reread() -> Settings:
        raise ConfigError("one is wrong\nand another")

    assert reread_or_none(reread) is None
    said = [record.getMessage() for record in caplog.records]
    assert said == ["reload: one is wrong", "reload: and another", "reload: nothing has changed"]
