from __future__ import annotations
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
import numpy as np
import pytest
Script: TypeAlias = Callable[[str], Sequence[InboxItem]]
ENDINGS: Final = ('done', 'complete', 'fail')
TOLERANCE: Final = 0.0002
PATIENCE_S: Final = 60.0

class StageSuite(Suite):

    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        ...

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        ...

    def test_every_request_ends_once_and_nothing_follows(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_requests_together_are_answered_as_each_alone(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_a_request_again_is_answered_alike(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_an_abort_is_answered_and_leaves_nothing(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_it_leaves_on_close_with_requests_in_it(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_it_counts_what_every_stage_counts(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_what_it_hands_on_can_travel(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

class PreprocessorSuite(StageSuite):

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        ...

    def test_what_came_is_not_changed(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_bad_input_fails_its_own_request_as_the_callers_fault(self, build: Callable[[], Scheduler], scripts: Sequence[Script], bad: Sequence[Script]) -> None:
        ...

def assert_alike(found: Sequence[Call], expected: Sequence[Call]) -> None:
    ...

def assert_equal(found: Any, expected: Any, place: str='it') -> None:
    ...
