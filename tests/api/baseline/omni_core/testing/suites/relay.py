from __future__ import annotations
import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
import numpy as np
import numpy.typing as npt
import pytest
WITHIN_S: Final = 20.0
Array = npt.NDArray[np.uint8]

@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPair:
    lender: Relay[Any, Any]
    borrower: Relay[Any, Any]
    target: str
    room_bytes: int
    to_memory: Callable[[Array], Any] = lambda data: data
    to_numpy: Callable[[Any], Array] = np.asarray
MakePair = Callable[[], AbstractContextManager[RelayPair]]

class RelaySuite(Suite):

    @pytest.fixture
    def make_pair(self, tmp_path: Path) -> MakePair:
        ...

    @pytest.mark.parametrize('share', [0.0, 0.01, 0.3, 0.5])
    def test_bytes_arrive_whole(self, make_pair: MakePair, share: float) -> None:
        ...

    def test_the_sender_may_reuse_its_memory_when_the_reader_has_it(self, make_pair: MakePair) -> None:
        ...

    def test_a_reference_opens_once(self, make_pair: MakePair) -> None:
        ...

    def test_room_is_bounded_and_comes_back(self, make_pair: MakePair) -> None:
        ...

    def test_what_is_not_sent_is_given_back(self, make_pair: MakePair) -> None:
        ...

    def test_what_a_dead_reader_was_lent_is_taken_back(self, make_pair: MakePair) -> None:
        ...

    def test_after_close_nothing_is_lent_and_nobody_waits(self, make_pair: MakePair) -> None:
        ...

    def test_nothing_is_left_after_close(self, make_pair: MakePair, tmp_path: Path) -> None:
        ...

    def test_it_counts(self, make_pair: MakePair) -> None:
        ...
