"""The file of a pool of shared memory: its layout, and a mapping of it for either side.

    words    magic, version, slot_bytes, slots, waiting; then from word 8: one "placed" and one
             "released" word for each slot, which hold generations of loans
    data     from the next page on: the slots

The file is sparse: a slot takes no memory until it is first used. Beside it lies a named pipe, into
which whoever releases memory writes a byte if the lender waits for some. Knows bytes and files.
Knows nothing of who lends what to whom.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from omni_core.errors import ProtocolError
from omni_core.relay.slots import Run

Bytes: TypeAlias = npt.NDArray[np.uint8]

_MAGIC: Final = int.from_bytes(b"OMNIPOOL", "little")
_VERSION: Final = 1
_WAITING: Final = 4
_PLACED: Final = 8
_WORD_BYTES: Final = 8


class SlabReference(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of one tensor are, for the one process they were placed for."""

    pool: str
    generation: Annotated[int, msgspec.Meta(ge=1)]
    runs: Annotated[tuple[Run, ...], msgspec.Meta(min_length=1)]
    """To be read in this order."""
    size_bytes: Annotated[int, msgspec.Meta(ge=1)]
    copy: bool
    """The lender is short: copy the bytes out and release them at once."""
    segment: bool
    """The bytes lie in a file of their own, and the one slot stands for it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a pool's file is divided."""

    slots: int
    slot_bytes: int

    @property
    def words(self) -> int:
        """Words before the data."""
        return _PLACED + 2 * self.slots

    @property
    def data_offset(self) -> int:
        """Where slot 0 begins."""
        pages = -(-self.words * _WORD_BYTES // mmap.PAGESIZE)
        return pages * mmap.PAGESIZE

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.data_offset + self.slots * self.slot_bytes

    def slots_for(self, size_bytes: int) -> int:
        """Slots that so many bytes take."""
        return -(-size_bytes // self.slot_bytes)


class PoolMapping:
    """A pool's file in this process's memory. It stays mapped while an array made of it lives."""

    def __init__(self, descriptor: int, layout: Layout, bell: int) -> None:
        """Owns both descriptors."""
        self.layout = layout
        self._data_offset = layout.data_offset
        self._descriptor = descriptor
        self._bell = bell
        # With the last view, not before: a release of it may have to ring.
        weakref.finalize(self, _close, descriptor, bell).atexit = False
        self._mapped = mmap.mmap(descriptor, layout.file_bytes)
        self._words = memoryview(self._mapped)[: layout.words * _WORD_BYTES].cast("Q")
        self._backed = bytearray(layout.slots)  # 1 where `back` has got memory
        self._fence = threading.RLock()  # releases may interrupt each other, even in one thread

    def view(self, run: Run, size_bytes: int) -> Bytes:
        """The first bytes of a run. While the array lives, so does the mapping."""
        offset = self._data_offset + run.start * self.layout.slot_bytes
        return np.frombuffer(self._mapped, np.uint8, size_bytes, offset)

    def placed(self, slot: int) -> int:
        """Generation of the loan that was last written there."""
        return self._words[_PLACED + slot]

    def set_placed(self, slot: int, generation: int) -> None:
        """The bytes of this loan are there now."""
        self._words[_PLACED + slot] = generation

    def released(self, slot: int) -> int:
        """Generation of the loan that was last released there."""
        return self._words[_PLACED + self.layout.slots + slot]

    def release(self, slot: int, generation: int) -> None:
        """Nobody uses the bytes of this loan any more. Safe in a finalizer: it never waits."""
        word = _PLACED + self.layout.slots + slot
        # One who was taken for dead may come late: the slot has been lent again, and released.
        if self._words[word] < generation:
            self._words[word] = generation
        with self._fence:  # either the lender sees the word above, or we see that it waits
            waiting = self._words[_WAITING]
        if waiting:
            self.ring()

    def ring(self) -> None:
        """Wake the lender's thread that waits."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._bell, b"\0")

    # -- for the lender alone

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Releases ring from here on."""
        self._words[_WAITING] = 1
        try:
            yield
        finally:
            self._words[_WAITING] = 0

    def wait(self, timeout_s: float) -> None:
        """Until somebody rings, or the time has passed."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            os.read(self._bell, mmap.PAGESIZE)

    def back(self, run: Run) -> None:
        """Get the memory of these slots now, or OSError: a full file system would kill whoever
        writes."""
        if 0 in self._backed[run.start : run.end]:
            os.posix_fallocate(self._descriptor, *self._span(run))
            self._backed[run.start : run.end] = b"\1" * run.slots

    def punch(self, run: Run) -> None:
        """Give the memory of these slots back, where the file system can."""
        with contextlib.suppress(OSError):
            self._mapped.madvise(mmap.MADV_REMOVE, *self._span(run))
            self._backed[run.start : run.end] = bytes(run.slots)

    def _span(self, run: Run) -> tuple[int, int]:
        """Offset in the file, and length."""
        slot_bytes = self.layout.slot_bytes
        return self._data_offset + run.start * slot_bytes, run.slots * slot_bytes


def create(path: Path, layout: Layout) -> PoolMapping:
    """A new pool, for its lender; OSError if the file system has no room for its head."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.ftruncate(descriptor, layout.file_bytes)
        os.posix_fallocate(descriptor, 0, layout.data_offset)
        header = np.array([_MAGIC, _VERSION, layout.slot_bytes, layout.slots], np.uint64)
        os.pwrite(descriptor, header.tobytes(), 0)
        os.mkfifo(_bell_path(path), 0o600)
        return PoolMapping(descriptor, layout, _open_bell(path))
    except OSError:
        os.close(descriptor)
        remove(path)
        raise


def attach(path: Path) -> PoolMapping:
    """The pool of another process; ProtocolError if there is none, or its file is not true."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as exc:
        raise ProtocolError(f"pool {path.name} cannot be opened: {exc}") from exc
    try:
        layout = _read_layout(path, descriptor)
        return PoolMapping(descriptor, layout, _open_bell(path))
    except (OSError, ProtocolError) as exc:
        os.close(descriptor)
        raise ProtocolError(f"pool {path.name} cannot be mapped: {exc}") from exc


def remove(path: Path) -> None:
    """Delete the file and its pipe; those who have it mapped keep it."""
    path.unlink(missing_ok=True)
    _bell_path(path).unlink(missing_ok=True)


def segment_path(path: Path, generation: int) -> Path:
    """The file of a tensor that is too large for the pool."""
    return path.with_name(f"{path.name}.{generation}")


def _bell_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.bell")


def _open_bell(path: Path) -> int:
    # For reading and writing: with one end only, the pipe would hang up for ever once a peer dies.
    return os.open(_bell_path(path), os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)


def _read_layout(path: Path, descriptor: int) -> Layout:
    header = os.pread(descriptor, 4 * _WORD_BYTES, 0).ljust(4 * _WORD_BYTES, b"\0")
    magic, version, slot_bytes, slots = np.frombuffer(header, np.uint64).tolist()
    if (magic, version) != (_MAGIC, _VERSION):
        raise ProtocolError(f"it is no pool of version {_VERSION}")
    layout = Layout(slots, slot_bytes)
    if not slots or not slot_bytes or layout.file_bytes != os.fstat(descriptor).st_size:
        raise ProtocolError("it says another size than its file has")
    return layout


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
