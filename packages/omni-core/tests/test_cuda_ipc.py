"""Tensors lent from card to card, over a fake card that needs none."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from omni_core.errors import OutOfMemoryError, ProtocolError, RelayFullError
from omni_core.relay.cuda_ipc import CudaIpcRelay
from omni_core.relay.cuda_ledger import CardReference, Head, Ledger
from omni_core.relay.cuda_lender import CardLender, CardPool
from omni_core.testing.cards import FakeCard
from omni_core.types import IntArray

torch = pytest.importorskip("torch")

SLOT = 64
POOL = CardPool(slot_bytes=SLOT, slots=8, direct_tickets=4, direct_bytes=4096)


class Ends:
    """A sender and a reader, each with its own view of the machine's cards."""

    def __init__(self, directory: Path, *, reader_card: str = "card-0") -> None:
        self.directory = directory
        self.memory = directory / "cards"
        self.memory.mkdir()
        self.sender_card = FakeCard(self.memory)
        self.reader_card = FakeCard(self.memory, uuid=reader_card)
        self.sender = CudaIpcRelay(directory, "sender", [self.sender_card], POOL)
        self.reader = CudaIpcRelay(directory, "reader", [self.reader_card], POOL)

    def send(self, size: int, seed: int = 0) -> CardReference:
        return self.sender.place(self.sender_card.tensor(noise(size, seed)), "reader")


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path)
    yield made
    made.reader.close()
    made.sender.close()


def noise(size: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def lent(relay: CudaIpcRelay) -> tuple[float, float]:
    """(slots, direct bytes) that are out."""
    stats = relay.stats()
    return stats["card_slots_lent"], stats["card_direct_lent_bytes"]


@pytest.mark.parametrize("size", [1, SLOT])
def test_small_tensors_go_through_the_pool_and_come_back_by_reference(
    ends: Ends, size: int
) -> None:
    reference = ends.send(size)
    assert reference.handle == b""
    view = ends.reader.open(reference)
    assert np.array_equal(view.numpy(), noise(size))
    part = view[:1]
    del view
    assert lent(ends.sender) == (1, 0), "a view made from it still needs the slot"
    del part
    assert lent(ends.sender) == (0, 0)


def test_a_large_tensor_of_the_same_card_is_lent_where_it_lies(ends: Ends) -> None:
    data = ends.sender_card.tensor(noise(1000))
    view = ends.reader.open(ends.sender.place(data, "reader"))
    assert lent(ends.sender) == (0, 1000)
    data[7] += 1
    assert view[7] == data[7], "one memory"
    del view
    ends.reader.close()
    assert lent(ends.sender) == (0, 0)
    assert ends.sender.stats()["card_bytes_direct"] == 1000


def test_the_mapping_of_a_direct_loan_goes_after_the_cards_last_work_and_before_the_loan(
    ends: Ends,
) -> None:
    view = ends.reader.open(ends.send(1000))
    ends.reader_card.work()
    mapped = ends.reader_card.open_handles
    del view
    assert lent(ends.sender) == (0, 1000)
    assert ends.reader_card.open_handles == mapped, "the card may still read"
    ends.reader_card.finish()
    ends.reader.close()
    assert lent(ends.sender) == (0, 0)
    assert ends.reader_card.open_handles == 0


def test_two_views_of_one_allocation_map_it_once(ends: Ends) -> None:
    data = ends.sender_card.tensor(noise(1000))
    one, other = (ends.reader.open(ends.sender.place(data, "reader")) for _ in range(2))
    assert ends.reader_card.open_handles == 2, "the pool and the allocation"
    del one
    assert np.array_equal(other.numpy(), noise(1000))


def test_memory_its_allocator_cannot_export_goes_through_the_pool(ends: Ends) -> None:
    reference = ends.sender.place(torch.from_numpy(noise(3 * SLOT)), "reader")
    assert reference.handle == b""
    assert lent(ends.sender) == (3, 0)
    assert np.array_equal(ends.reader.open(reference).numpy(), noise(3 * SLOT))


def test_what_lies_on_another_card_is_refused(tmp_path: Path) -> None:
    ends = Ends(tmp_path, reader_card="card-1")
    with pytest.raises(ProtocolError, match="a card that this process does not use"):
        ends.reader.open(ends.send(5 * SLOT))


def test_a_sender_more_than_half_full_has_its_slots_copied_out(ends: Ends) -> None:
    references = [ends.send(SLOT, seed) for seed in range(5)]
    assert [reference.crowded for reference in references] == [False] * 4 + [True]
    views = [ends.reader.open(reference) for reference in references]
    assert lent(ends.sender) == (4, 0), "the fifth was copied"
    for seed, view in enumerate(views):
        assert np.array_equal(view.numpy(), noise(SLOT, seed))


def test_a_full_card_says_so_at_once(ends: Ends) -> None:
    references = [ends.send(SLOT) for _ in range(8)]
    with pytest.raises(RelayFullError, match="no room on card"):
        ends.send(SLOT)
    ends.sender.discard(references[3])
    ends.sender.discard(references[3])
    ends.send(SLOT)


def no_room(descriptor: int, offset: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "no room")


def test_a_card_without_room_for_a_pool_is_full_until_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeCard(tmp_path, limit_bytes=700)
    relay = CudaIpcRelay(tmp_path, "sender", [card], POOL)
    taken = card.allocate(600)
    small = torch.from_numpy(noise(1))
    with pytest.raises(RelayFullError):
        relay.place(small, "reader")
    assert lent(relay) == (0, 0)
    card.free(taken)
    with monkeypatch.context() as crowded:
        crowded.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(RelayFullError):
            relay.place(small, "reader")
    assert list(tmp_path.iterdir()) == []
    relay.place(small, "reader")
    assert lent(relay) == (1, 0)
    relay.close()


def test_a_card_that_can_share_nothing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    card = FakeCard(tmp_path)
    monkeypatch.setattr(card, "export", lambda address: None)
    relay = CudaIpcRelay(tmp_path, "sender", [card], POOL)
    for _ in range(3):
        with pytest.raises(RelayFullError):
            relay.place(torch.from_numpy(noise(1)), "reader")
    assert [record.message for record in caplog.records] == [
        "tensors of cpu will go through the host: other processes cannot reach the memory of cpu"
    ]
    assert list(tmp_path.iterdir()) == []
    relay.close()


def test_a_reader_without_room_for_a_copy_keeps_the_view(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensor: torch.Tensor) -> torch.Tensor:
        raise OutOfMemoryError("full")

    monkeypatch.setattr(ends.reader_card, "take", full)
    references = [ends.send(SLOT, seed) for seed in range(5)]
    assert references[4].crowded
    view = ends.reader.open(references[4])
    assert np.array_equal(view.numpy(), noise(SLOT, 4))
    assert ends.reader.stats()["card_bytes_copied_out"] == 0
    del view
    assert lent(ends.sender) == (4, 0)


def test_a_lender_takes_back_what_it_lent_itself(tmp_path: Path) -> None:
    one, other = (
        CardLender(tmp_path / "p@1", FakeCard(tmp_path, uuid=uuid), POOL) for uuid in ("a", "b")
    )
    mine, its = (lender.place(torch.from_numpy(noise(1)), "reader") for lender in (one, other))
    assert mine is not None
    assert its is not None
    assert (mine.ticket, mine.generation) == (its.ticket, its.generation)
    one.discard(its)
    assert one.stats()["card_slots_lent"] == 1
    one.discard(mine)
    assert one.stats()["card_slots_lent"] == 0
    one.close()
    other.close()


def test_direct_loans_are_bounded_too(ends: Ends) -> None:
    references = [ends.send(1500) for _ in range(2)]
    with pytest.raises(RelayFullError):
        ends.send(1500)
    assert [reference.crowded for reference in references] == [False, True]


def test_events_order_a_slots_writes_and_reads(ends: Ends) -> None:
    def event(ticket: int, reference: CardReference) -> str:
        handle = Ledger.open(ends.directory / reference.ledger).head.events[ticket]
        return handle.rstrip(b"\0").decode()

    wide = ends.sender.place(torch.from_numpy(noise(2 * SLOT)), "reader")
    ends.reader.open(wide)  # and let go at once
    assert ends.reader_card.log == [("wait", event(0, wide)), ("record", event(0, wide))]
    ends.sender_card.log.clear()
    first, second = ends.send(1), ends.send(2)
    assert (first.ticket, second.ticket) == (0, 1)
    assert ends.sender_card.log == [
        *[("wait", event(0, wide)), ("write", "1"), ("record", event(0, wide))],
        # The second slot was last read under the ticket of the first.
        *[("wait", event(0, wide)), ("write", "2"), ("record", event(1, wide))],
    ]


def test_what_a_dead_process_held_is_taken_back_and_what_it_lent_stays(ends: Ends) -> None:
    view = ends.reader.open(ends.send(SLOT))
    late = ends.send(1000)
    ends.sender.forget("reader")
    assert lent(ends.sender) == (0, 0)
    ends.reader.forget("sender")
    assert ends.reader_card.open_handles == 1
    assert np.array_equal(view.numpy(), noise(SLOT))
    del view
    assert ends.reader_card.open_handles == 0
    ends.sender.close()
    with pytest.raises(ProtocolError, match="cannot be opened"):
        ends.reader.open(late)


def test_references_that_are_not_true_are_refused(ends: Ends) -> None:
    good = ends.send(SLOT)
    for bad in (
        replace(good, ledger="../" + good.ledger),
        replace(good, ledger="other@1.card-0"),
        replace(good, ticket=12),
        replace(good, ticket=9),
        replace(good, handle=b"x" * 64),
        replace(good, offset=8),
        replace(good, offset=1 << 40),
        replace(good, size_bytes=9 * SLOT),
        replace(good, generation=0),
    ):
        with pytest.raises(ProtocolError):
            ends.reader.open(bad)
    assert np.array_equal(ends.reader.open(good).numpy(), noise(SLOT))
    with pytest.raises(ProtocolError, match="over or taken"):
        ends.reader.open(good)


def test_a_handle_to_nothing_is_refused_and_costs_nothing(ends: Ends) -> None:
    direct = ends.send(1000)
    with pytest.raises(ProtocolError, match="cannot be mapped"):
        ends.reader.open(replace(direct, handle=b"gone".ljust(64, b"\0")))


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    head = Head(card="c", pool=b"", slot_bytes=1, slots=1, events=(b"",))
    Ledger.create(tmp_path / "good.card", head).close()
    content = (tmp_path / "good.card").read_bytes()
    for bad in (b"", content[:-8], b"\xff" * 8 + content[8:], content[:8] + b"\xc1" * 40):
        (tmp_path / "bad.card").write_bytes(bad)
        with pytest.raises(ProtocolError):
            Ledger.open(tmp_path / "bad.card")
    (tmp_path / "link.card").symlink_to(tmp_path / "good.card")
    with pytest.raises(ProtocolError):
        Ledger.open(tmp_path / "link.card")


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    view = ends.reader.open(ends.send(SLOT))
    del view
    ends.reader.close()
    ends.sender.close()
    ends.sender.close()
    assert not list(tmp_path.glob("*@*"))
    assert ends.reader_card.open_handles == 0
    with pytest.raises(RelayFullError):
        ends.send(SLOT)


READER = """
import sys
from pathlib import Path

import msgspec

from omni_core.relay.cuda_ipc import CudaIpcRelay
from omni_core.relay.cuda_ledger import CardReference
from omni_core.testing.cards import FakeCard

directory = Path(sys.argv[1])
relay = CudaIpcRelay(directory, "reader", [FakeCard(directory / "cards")])
held = []
for line in sys.stdin:
    tensor = relay.open(msgspec.json.decode(line, type=CardReference))
    print(int(tensor.sum()), flush=True)
    held = [*held[-1:], tensor]
    del tensor
held.clear()
relay.close()
"""


def test_between_processes(tmp_path: Path) -> None:
    """Hundreds of loans, pooled and direct; the reader adds them up and keeps the last two. How
    soon a thread of its gives direct ones back is not told, so there is room for all."""
    memory = tmp_path / "cards"
    memory.mkdir()
    card = FakeCard(memory)
    pool = CardPool(slot_bytes=SLOT, slots=8, direct_tickets=300, direct_bytes=1 << 20)
    relay = CudaIpcRelay(tmp_path, "sender", [card], pool)
    command = [sys.executable, "-c", READER, str(tmp_path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for seed in range(300):
            data = noise(1 + seed * 7 % 700, seed)
            reference = relay.place(card.tensor(data), "reader")
            reader.stdin.write(msgspec.json.encode(reference) + b"\n")
            reader.stdin.flush()
            assert int(reader.stdout.readline()) == int(data.sum())
        reader.stdin.close()
    assert reader.returncode == 0
    assert lent(relay) == (0, 0)
    stats = relay.stats()
    assert min(stats["card_bytes_pooled"], stats["card_bytes_direct"]) > 0
    relay.close()
