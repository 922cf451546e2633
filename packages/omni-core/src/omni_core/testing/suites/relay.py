"""`RelaySuite`: what is lent arrives once and whole, room is bounded, and nothing is left."""

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

from omni_core.errors import OmniError, ProtocolError, RelayFullError
from omni_core.relay.base import Relay
from omni_core.testing.suites.base import Suite, missing

WITHIN_S: Final = 20.0
Array = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPair:
    """A process that lends and one that borrows, as a suite sees them."""

    lender: Relay[Any, Any]
    borrower: Relay[Any, Any]
    target: str
    """What the lender calls the borrower."""
    room_bytes: int
    """What the lender can lend at once, at most; small, or the laws take long."""
    to_memory: Callable[[Array], Any] = lambda data: data
    """Bytes as the relay's memory."""
    to_numpy: Callable[[Any], Array] = np.asarray
    """And back."""


MakePair = Callable[[], AbstractContextManager[RelayPair]]


class RelaySuite(Suite):
    """Give `make_pair`: a context manager of a `RelayPair` that closes both when it ends. The
    lender's patience should be under a second."""

    @pytest.fixture
    def make_pair(self, tmp_path: Path) -> MakePair:
        """Files of the relay go into `tmp_path`, if it has any."""
        raise missing(self, "make_pair")

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5])
    def test_bytes_arrive_whole(self, make_pair: MakePair, share: float) -> None:
        """Of every size, from one byte on."""
        with make_pair() as pair:
            data = _noise(max(1, int(share * pair.room_bytes)))
            view = pair.borrower.open(_place(pair, data))
            assert np.array_equal(pair.to_numpy(view), data)

    def test_the_sender_may_reuse_its_memory_when_the_reader_has_it(
        self, make_pair: MakePair
    ) -> None:
        """Two loans are two memories."""
        with make_pair() as pair:
            size = pair.room_bytes // 8
            references = [_place(pair, _noise(size, seed)) for seed in range(3)]
            views = [pair.borrower.open(reference) for reference in reversed(references)]
            for seed, view in zip((2, 1, 0), views, strict=True):
                assert np.array_equal(pair.to_numpy(view), _noise(size, seed))

    def test_a_reference_opens_once(self, make_pair: MakePair) -> None:
        """And not after it was given back."""
        with make_pair() as pair:
            reference = _place(pair, _noise(64))
            view = pair.borrower.open(reference)
            with pytest.raises(ProtocolError):
                pair.borrower.open(reference)
            del view
            with pytest.raises(ProtocolError):
                pair.borrower.open(reference)

    def test_room_is_bounded_and_comes_back(self, make_pair: MakePair) -> None:
        """A full lender says so in a moment, with an error that a retry may mend."""
        with make_pair() as pair:
            piece = max(1, pair.room_bytes // 8)
            held = _fill(pair, piece)
            with pytest.raises(RelayFullError) as full:
                _place(pair, _noise(piece))
            assert full.value.retryable
            for reference in held:
                pair.borrower.open(reference)
            gc.collect()
            assert len(_fill(pair, piece)) == len(held), "some room was lost"

    def test_what_is_not_sent_is_given_back(self, make_pair: MakePair) -> None:
        """By the lender itself."""
        with make_pair() as pair:
            piece = max(1, pair.room_bytes // 8)
            held = _fill(pair, piece)
            for reference in held:
                pair.lender.discard(reference)
            assert len(_fill(pair, piece)) == len(held)

    def test_what_a_dead_reader_was_lent_is_taken_back(self, make_pair: MakePair) -> None:
        """Whether it had opened it or not."""
        with make_pair() as pair:
            piece = max(1, pair.room_bytes // 8)
            held = _fill(pair, piece)
            view = pair.borrower.open(held[0])
            pair.lender.forget(pair.target)
            assert len(_fill(pair, piece)) >= len(held) - 1
            del view

    def test_after_close_nothing_is_lent_and_nobody_waits(self, make_pair: MakePair) -> None:
        """Closing twice is as good as once."""
        with make_pair() as pair:
            piece = max(1, pair.room_bytes // 8)
            _fill(pair, piece)
            ended: list[OmniError] = []
            thread = threading.Thread(target=_refused, args=(pair, piece, ended), daemon=True)
            thread.start()
            for relay in (pair.lender, pair.borrower):
                relay.close()
                relay.close()
            thread.join(WITHIN_S)
            assert not thread.is_alive()
            assert ended
            with pytest.raises(OmniError):
                _place(pair, _noise(piece))

    def test_nothing_is_left_after_close(self, make_pair: MakePair, tmp_path: Path) -> None:
        """Not even of what was never opened; a view in use stays valid."""
        with make_pair() as pair:
            data = _noise(pair.room_bytes // 8)
            view = pair.borrower.open(_place(pair, data))
            _place(pair, data)
        assert np.array_equal(pair.to_numpy(view), data)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_it_counts(self, make_pair: MakePair) -> None:
        """Numbers, by name."""
        with make_pair() as pair:
            pair.borrower.open(_place(pair, _noise(64)))
            for relay in (pair.lender, pair.borrower):
                stats = relay.stats()
                assert stats
                assert all(isinstance(value, (int, float)) for value in stats.values())


def _noise(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def _place(pair: RelayPair, data: Array) -> Any:
    return pair.lender.place(pair.to_memory(data), pair.target)


def _fill(pair: RelayPair, piece: int) -> list[Any]:
    """References to as many pieces as there is room for."""
    held: list[Any] = []
    while len(held) <= pair.room_bytes // piece:
        try:
            held.append(_place(pair, _noise(piece)))
        except RelayFullError:
            assert held, "not even one piece found room"
            return held
    raise AssertionError(f"{len(held)} pieces of {piece} bytes in {pair.room_bytes} bytes of room")


def _refused(pair: RelayPair, piece: int, ended: list[OmniError]) -> None:
    try:
        _place(pair, _noise(piece))
    except OmniError as error:
        ended.append(error)
