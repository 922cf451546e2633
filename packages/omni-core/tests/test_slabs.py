"""Shared memory is lent, seen without copying, given back by reference, and never without bound."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from omni_core.errors import (
    ConfigError,
    NotReadyError,
    ProtocolError,
    RelayFullError,
    StageDiedError,
    StageError,
)
from omni_core.relay.lender import DEFAULT_POOL_BYTES, MIB, POOL_VARIABLE, PoolLimits, pool_limits
from omni_core.relay.pool import Bytes, SlabReference
from omni_core.relay.slabs import SharedMemory, remove_leftovers

SLOT = 4096
SLOTS = 8
TINY = PoolLimits(
    pool_bytes=SLOTS * SLOT, slot_bytes=SLOT, warm_bytes=2 * SLOT, ease_s=0.0, patience_s=0.05
)


def tensor(slots: float, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, int(slots * SLOT), np.uint8)


class Pair:
    """Process `a` lends, process `b` borrows."""

    def __init__(self, directory: Path, limits: PoolLimits = TINY) -> None:
        self.directory = directory
        self.flushed = 0
        self.a = SharedMemory(directory, "a", limits, self._flush)
        self.b = SharedMemory(directory, "b", limits)

    def _flush(self) -> None:
        self.flushed += 1

    @property
    def used(self) -> float:
        return self.a.stats()["slots_used"]

    def close(self) -> None:
        self.a.close()
        self.b.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slots", [0.01, 1, 1.5, 4])
def test_bytes_go_across_and_their_slots_come_back(pair: Pair, slots: float) -> None:
    data = tensor(slots)
    view = pair.b.open(pair.a.place(data, "b"))
    np.testing.assert_array_equal(view, data)
    assert pair.used == np.ceil(slots)
    del view
    assert pair.used == 0


def test_a_reader_sees_the_writers_memory_without_a_copy(pair: Pair) -> None:
    data = tensor(2)
    reference = pair.a.place(data, "b")
    view = pair.b.open(reference)
    again = SharedMemory(pair.directory, "c", TINY)
    other = again.open(reference)
    view[0] ^= 1
    assert other[0] == view[0] != data[0]
    assert pair.b.stats()["bytes_viewed"] == data.nbytes
    assert pair.b.stats()["bytes_copied_out"] == 0
    again.close()


def test_memory_is_released_with_the_last_thing_made_of_it(pair: Pair) -> None:
    numbers = pair.b.open(pair.a.place(tensor(2), "b")).view(np.float32).reshape(2, -1)
    row = numbers[1]
    del numbers
    assert pair.used == 2
    del row
    assert pair.used == 0


def test_memory_under_a_torch_tensor_is_released_with_it(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    made = torch.from_numpy(pair.b.open(pair.a.place(tensor(2), "b")))
    half = made.view(torch.bfloat16).reshape(4, -1)[2]
    del made
    assert pair.used == 2
    del half
    assert pair.used == 0


def test_what_takes_over_half_the_pool_is_copied_out_and_released_at_once(pair: Pair) -> None:
    kept = [pair.b.open(pair.a.place(tensor(2, seed), "b")) for seed in range(2)]
    assert pair.used == SLOTS / 2
    for seed in range(2, 20):
        kept.append(pair.b.open(pair.a.place(tensor(3, seed), "b")))
        assert pair.used == SLOTS / 2
    for seed, data in enumerate(kept):
        np.testing.assert_array_equal(data, tensor(2 if seed < 2 else 3, seed))
    assert pair.b.stats()["bytes_copied_out"] == 18 * 3 * SLOT


def test_a_tensor_in_pieces_comes_whole(pair: Pair) -> None:
    held = [pair.a.place(tensor(1, seed), "b") for seed in range(SLOTS)]
    for reference in held[1::2]:
        pair.a.discard(reference)
    data = tensor(3.5)
    reference = pair.a.place(data, "b")
    assert len(reference.runs) == 4
    np.testing.assert_array_equal(pair.b.open(reference), data)
    assert pair.used == SLOTS / 2


def test_what_was_not_sent_is_freed(pair: Pair) -> None:
    for slots in (1, 4, 20):
        pair.a.discard(pair.a.place(tensor(slots), "b"))
    assert pair.used == 0
    assert sorted(path.name for path in pair.directory.iterdir()) == sorted(
        f"{name}@{os.getpid()}{end}" for name in "ab" for end in ("", ".bell")
    )


# -- tensors over half the pool


@pytest.mark.parametrize("slots", [SLOTS // 2 + 1, SLOTS, 3 * SLOTS])
def test_a_large_tensor_gets_a_file_of_its_own(pair: Pair, slots: int) -> None:
    data = tensor(slots)
    reference = pair.a.place(data, "b")
    segment = pair.directory / f"{reference.pool}.{reference.generation}"
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600
    assert (pair.used, pair.a.stats()["segment_bytes"]) == (1, data.nbytes)
    view = pair.b.open(reference)
    assert not segment.exists()
    assert (pair.used, pair.a.stats()["segment_bytes"]) == (0, 0)
    np.testing.assert_array_equal(view, data)


def test_unread_files_are_bounded(pair: Pair) -> None:
    first = pair.a.place(tensor(3 * SLOTS), "b")
    with pytest.raises(RelayFullError):
        pair.a.place(tensor(2 * SLOTS), "b")
    view = pair.b.open(first)
    pair.b.open(pair.a.place(tensor(2 * SLOTS), "b"))
    np.testing.assert_array_equal(view, tensor(3 * SLOTS))


def test_a_tensor_that_can_never_find_room_is_refused_with_the_remedy(pair: Pair) -> None:
    with pytest.raises(StageError, match=f"{5 * SLOTS * SLOT} bytes.*raise {POOL_VARIABLE}"):
        pair.a.place(tensor(5 * SLOTS), "b")
    assert pair.used == 0


# -- back pressure


def test_a_writer_without_room_fails_after_its_patience(pair: Pair) -> None:
    held = [pair.a.place(tensor(1), "b") for _ in range(SLOTS)]
    with pytest.raises(RelayFullError, match=POOL_VARIABLE) as failed:
        pair.a.place(tensor(1), "b")
    assert (failed.value.status, failed.value.retryable) == (503, True)
    assert pair.flushed == 1
    stats = pair.a.stats()
    assert (stats["waits"], stats["waits_timed_out"], stats["slots_used"]) == (1, 1, SLOTS)
    pair.b.open(held[0])
    pair.a.place(tensor(1), "b")


def patient(directory: Path, ease_s: float = 0.0) -> Pair:
    limits = PoolLimits(
        pool_bytes=SLOTS * SLOT, slot_bytes=SLOT, warm_bytes=0, ease_s=ease_s, patience_s=30.0
    )
    return Pair(directory, limits)


def while_waiting(made: Pair, act: Callable[[], Any], slots: int = 1) -> list[Any]:
    """What `place` gave or raised in a thread that waited for room before `act` was called."""
    got: list[Any] = []
    flushed = threading.Event()
    made.a._lender._before_wait = flushed.set

    def place() -> None:
        try:
            got.append(made.a.place(tensor(slots), "b"))
        except Exception as exc:  # noqa: BLE001 - handed to the test's own thread
            got.append(exc)

    thread = threading.Thread(target=place)
    thread.start()
    assert flushed.wait(10)
    act()
    thread.join(10)
    assert not thread.is_alive()
    assert made.a.stats()["waits_timed_out"] == 0
    return got


def test_a_release_wakes_the_writer_that_waits(tmp_path: Path) -> None:
    made = patient(tmp_path)
    views = [made.b.open(made.a.place(tensor(4), "b"))]
    held = [made.a.place(tensor(1), "b") for _ in range(SLOTS // 2)]
    [reference] = while_waiting(made, views.clear, slots=3)
    np.testing.assert_array_equal(made.b.open(reference), tensor(3))
    assert len(held) == SLOTS // 2
    made.close()


def test_a_writer_waits_a_moment_for_the_half_that_is_viewed(tmp_path: Path) -> None:
    made = patient(tmp_path, ease_s=20.0)
    views = [made.b.open(made.a.place(tensor(SLOTS // 2), "b"))]
    [reference] = while_waiting(made, views.clear)
    assert not reference.copy
    assert made.a.stats()["waits"] == 0
    made.close()


def test_a_writer_waits_no_longer_than_that_moment(tmp_path: Path) -> None:
    made = patient(tmp_path, ease_s=0.001)
    views = [made.b.open(made.a.place(tensor(SLOTS // 2), "b"))]
    assert made.a.place(tensor(1), "b").copy
    assert views
    made.close()


def test_a_death_wakes_the_writer_that_waits(tmp_path: Path) -> None:
    made = patient(tmp_path)
    for _ in range(SLOTS):
        made.a.place(tensor(1), "dead")
    [reference] = while_waiting(made, lambda: made.a.forget("dead"))
    assert isinstance(reference, SlabReference)
    assert made.used == 1
    made.close()


def test_closing_wakes_the_writer_that_waits(tmp_path: Path) -> None:
    made = patient(tmp_path)
    for _ in range(SLOTS):
        made.a.place(tensor(1), "b")
    [error] = while_waiting(made, made.a.close)
    assert isinstance(error, NotReadyError)
    made.close()


def test_nobody_overtakes_a_writer_that_waits(tmp_path: Path) -> None:
    made = patient(tmp_path)
    view = made.b.open(made.a.place(tensor(4), "b"))
    held = [made.a.place(tensor(1), "b") for _ in range(3)]  # one slot is left
    late: list[SlabReference] = []

    def act() -> None:
        nonlocal view
        thread = threading.Thread(target=lambda: late.append(made.a.place(tensor(1), "b")))
        thread.start()
        thread.join(0.05)
        assert late == []
        del view
        thread.join(10)

    [waited] = while_waiting(made, act, slots=4)
    assert late[0].generation > waited.generation
    assert len(held) == 3
    made.close()


def test_two_processes_full_of_each_others_tensors_still_exchange(tmp_path: Path) -> None:
    """Each keeps all it ever read, as stages in a circle might, and nobody waits."""
    made = Pair(tmp_path)
    kept = []
    for seed in range(30):
        for source, target, name in ((made.a, made.b, "b"), (made.b, made.a, "a")):
            kept.append((seed, target.open(source.place(tensor(3, seed), name))))
    for seed, data in kept:
        np.testing.assert_array_equal(data, tensor(3, seed))
    assert made.a.stats()["waits"] == made.b.stats()["waits"] == 0
    made.close()


# -- deaths


def test_the_slots_of_a_dead_reader_come_back(pair: Pair) -> None:
    views = [pair.b.open(pair.a.place(tensor(1), "b"))]
    pair.a.place(tensor(20), "b")
    kept = pair.a.place(tensor(1), "c")
    pair.a.forget("b")
    assert pair.used == 1
    assert len(list(pair.directory.iterdir())) == 4
    views.clear()  # a late release of what has been taken back
    np.testing.assert_array_equal(pair.b.open(kept), tensor(1))


def test_a_late_release_by_one_taken_for_dead_leaks_no_slot(pair: Pair) -> None:
    late = pair.b.open(pair.a.place(tensor(1), "b"))
    pair.a.forget("b")
    again = pair.a.place(tensor(1), "c")
    assert again.runs == ((0, 1),)
    pair.b.open(again)  # and dropped: released before the late one
    del late
    assert pair.used == 0


def test_a_reader_that_dies_while_a_tensor_is_placed_for_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = pair.a._lender
    write = lender._write
    monkeypatch.setattr(lender, "_write", lambda *args: (write(*args), pair.a.forget("b")))
    with pytest.raises(StageDiedError):
        pair.a.place(tensor(1), "b")
    assert pair.used == 0


def test_a_view_outlives_the_process_that_lent_it(pair: Pair) -> None:
    view = pair.b.open(pair.a.place(tensor(2), "b"))
    pair.b.forget("a")
    pair.a.close()
    np.testing.assert_array_equal(view, tensor(2))


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    dead, other = SharedMemory(tmp_path, "a", TINY), SharedMemory(tmp_path, "a.1", TINY)
    dead.place(tensor(20), "b")
    assert len(list(tmp_path.iterdir())) == 5
    remove_leftovers(tmp_path, "a")
    assert all(path.name.startswith("a.1@") for path in tmp_path.iterdir())
    other.close()
    assert list(tmp_path.iterdir()) == []


# -- references nobody should believe


def told(reference: SlabReference) -> SlabReference:
    """What the other side reads."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(reference), type=SlabReference)


@pytest.mark.parametrize(
    "lie",
    [
        {"pool": "../secret@1"},
        {"pool": "a"},
        {"pool": "a@1"},
        {"pool": ""},
        {"generation": 2},
        {"generation": 2**63},
        {"runs": ((0, 2),)},
        {"runs": ((1, 1),)},
        {"runs": ((SLOTS, 1),)},
        {"runs": ((2**62, 1),)},
        {"runs": ((-1, 1),)},
        {"runs": ((0, 1), (1, 0))},
        {"runs": ((0, 1), (1, 1))},
        {"runs": ((0, SLOTS), (0, 1)), "size_bytes": (SLOTS + 1) * SLOT},
        {"size_bytes": SLOT + 1},
        {"size_bytes": 2**62},
        {"segment": True},
    ],
    ids=repr,
)
def test_a_lie_is_a_protocol_error(pair: Pair, lie: dict[str, Any]) -> None:
    true = pair.a.place(tensor(1), "b")
    with pytest.raises(ProtocolError):
        pair.b.open(told(msgspec.structs.replace(true, **lie)))
    pair.a.discard(true)


def test_a_slot_that_was_lent_again_cannot_be_read_by_the_old_reference(pair: Pair) -> None:
    old = pair.a.place(tensor(1), "b")
    pair.a.discard(old)
    new = pair.a.place(tensor(1, seed=1), "b")
    assert new.runs == old.runs
    with pytest.raises(ProtocolError, match="of another time"):
        pair.b.open(old)
    np.testing.assert_array_equal(pair.b.open(new), tensor(1, seed=1))


@pytest.mark.parametrize("damage", ["magic", "size", "short", "link", "no-bell"])
def test_a_file_that_is_no_pool_is_a_protocol_error(
    tmp_path: Path, pair: Pair, damage: str
) -> None:
    true = pair.a.place(tensor(1), "b")
    path = tmp_path / true.pool
    match damage:
        case "magic":
            path.write_bytes(b"\0" + path.read_bytes()[1:])
        case "size":
            os.truncate(path, path.stat().st_size - 1)
        case "short":
            path.write_bytes(b"OMNI")
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "no-bell":
            (tmp_path / f"{true.pool}.bell").unlink()
    with pytest.raises(ProtocolError):
        pair.b.open(true)
    (tmp_path / "elsewhere").unlink(missing_ok=True)


# -- memory


def memory_of(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.glob("a@*"))


def test_slots_cost_memory_from_their_first_use_and_give_it_back_behind_the_warm() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no tmpfs")
    directory = shm / f"omni-test-{os.getpid()}"
    directory.mkdir(mode=0o700)
    made = Pair(directory)
    try:
        empty = memory_of(directory)
        made.b.open(made.a.place(tensor(1), "b"))
        assert memory_of(directory) == empty + SLOT
        held = [made.a.place(tensor(1), "b") for _ in range(SLOTS)]
        assert memory_of(directory) == empty + SLOTS * SLOT
        for reference in held:
            made.b.open(reference)
        assert made.used == 0
        assert memory_of(directory) == empty + TINY.warm_bytes
    finally:
        made.close()
        directory.rmdir()


def test_a_full_file_system_fails_one_tensor(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        for slots in (1, 20):
            with pytest.raises(RelayFullError, match=r"No space left on device.*--shm-size"):
                pair.a.place(tensor(slots), "b")
    assert pair.used == 0
    pair.b.open(pair.a.place(tensor(1), "b"))


@pytest.mark.parametrize(
    ("environ", "size_bytes"), [({POOL_VARIABLE: "3"}, 3 * MIB), ({}, DEFAULT_POOL_BYTES)]
)
def test_the_pools_size_is_the_operators_word(
    environ: dict[str, str], size_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk(f_blocks=2**30, f_frsize=4096))
    assert pool_limits(tmp_path, environ).pool_bytes == size_bytes


def test_a_small_file_system_gets_small_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk(f_blocks=64, f_frsize=MIB))
    assert pool_limits(tmp_path, {}).pool_bytes == 16 * MIB


class _Disk(msgspec.Struct):
    f_blocks: int
    f_frsize: int


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "many"])
def test_a_bad_pool_size_is_a_config_error(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=POOL_VARIABLE):
        pool_limits(tmp_path, {POOL_VARIABLE: value})


# -- any order of all of it


class Traffic(RuleBasedStateMachine):
    """No byte is lost or mixed up and no slot leaks, whoever holds what for how long."""

    unread, views = Bundle("unread"), Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp")
        self.directory /= f"omni-test-{os.getpid()}-{threading.get_ident()}"
        self.directory.mkdir(mode=0o700)
        limits = PoolLimits(
            pool_bytes=SLOTS * SLOT, slot_bytes=SLOT, warm_bytes=0, ease_s=0.0, patience_s=0.0
        )
        self.pair = Pair(self.directory, limits)
        self.seed = 0
        self.live: dict[int, Bytes] = {}

    @rule(target=unread, slots=st.sampled_from([0.3, 1, 2.5, 4, 6]))
    def place(self, slots: float) -> tuple[int, float, SlabReference | None]:
        self.seed += 1
        try:
            return self.seed, slots, self.pair.a.place(tensor(slots, self.seed), "b")
        except RelayFullError:
            return self.seed, slots, None

    @rule(target=views, item=consumes(unread))
    def open(self, item: tuple[int, float, SlabReference | None]) -> int:
        seed, slots, reference = item
        if reference is not None:
            self.live[seed] = self.pair.b.open(reference)
            np.testing.assert_array_equal(self.live[seed], tensor(slots, seed))
            with pytest.raises(ProtocolError):
                self.pair.b.open(reference)
        return seed

    @rule(item=consumes(unread))
    def discard(self, item: tuple[int, float, SlabReference | None]) -> None:
        if item[2] is not None:
            self.pair.a.discard(item[2])
            with pytest.raises(ProtocolError):
                self.pair.b.open(msgspec.structs.replace(item[2], generation=10**6))

    @rule(seed=consumes(views))
    def drop(self, seed: int) -> None:
        self.live.pop(seed, None)

    @invariant()
    def bounded(self) -> None:
        assert self.pair.used <= SLOTS

    def teardown(self) -> None:
        self.live.clear()
        self.pair.a.forget("b")
        assert self.pair.used == 0
        self.pair.close()
        self.directory.rmdir()


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
