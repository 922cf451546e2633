"""A card without a card: device memory that is files, and a log of what the card was asked for.

Memory crosses processes as on a real card, by handle. Work is done when it is asked for, so what a
test can check of order is the log, and who waits while `finish` has not been called.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from omni_core.errors import OutOfMemoryError, ProtocolError
from omni_core.relay.cuda_device import HANDLE_BYTES, CardEvent, Export

if TYPE_CHECKING:
    import torch

Entry: TypeAlias = tuple[str, str]
"""What the card did, and with which event or memory."""
_numbers: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class _Memory:
    name: str
    mapped: mmap.mmap
    address: int


class FakeCard:
    """Implements `Card`; its tensors are torch CPU tensors made by `tensor`."""

    def __init__(
        self, directory: Path, *, uuid: str = "card-0", limit_bytes: int = 1 << 30
    ) -> None:
        """`directory` holds the memory of all cards of the machine."""
        self.device = "cpu"
        self.uuid = uuid
        self.log: list[Entry] = []
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._own: dict[int, _Memory] = {}
        self._opened: dict[int, _Memory] = {}
        self._idle = threading.Event()
        self._idle.set()

    @property
    def open_handles(self) -> int:
        """Allocations of others that are mapped now."""
        return len(self._opened)

    def work(self) -> None:
        """From now on work is queued and not done: `CardEvent.synchronize` waits."""
        self._idle.clear()

    def finish(self) -> None:
        """All that is queued is done."""
        self._idle.set()

    def tensor(self, data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> torch.Tensor:
        """A flat uint8 tensor in this card's memory, at an offset as a caching allocator's have."""
        address = self.allocate(_OFFSET_BYTES + data.nbytes) + _OFFSET_BYTES
        tensor = self.view(address, data.nbytes, lambda: None)
        tensor.numpy()[:] = data
        return tensor

    def allocate(self, size_bytes: int) -> int:
        """See `Card.allocate`."""
        if (
            size_bytes + sum(len(memory.mapped) for memory in self._own.values())
            > self._limit_bytes
        ):
            raise OutOfMemoryError(f"the fake card has no {size_bytes} bytes left")
        path = self._directory / f"memory-{id(self)}-{next(_numbers)}"
        path.write_bytes(bytes(size_bytes))
        return self._map(path, self._own)

    def free(self, address: int) -> None:
        """See `Card.free`."""
        memory = self._own.pop(address)
        (self._directory / memory.name).unlink()

    def export(self, address: int) -> Export | None:
        """See `Card.export`; None for memory that is not of `tensor` or `allocate`."""
        for memory in self._own.values():
            if memory.address <= address < memory.address + len(memory.mapped):
                return Export(_handle(memory.name), address - memory.address)
        return None

    def open(self, handle: bytes) -> int:
        """See `Card.open`."""
        name = handle.rstrip(b"\0").decode()
        try:
            return self._map(self._directory / name, self._opened)
        except OSError as exc:
            raise ProtocolError(f"memory {name} cannot be mapped: {exc}") from exc

    def close(self, address: int) -> None:
        """See `Card.close`."""
        self.log.append(("close", self._opened.pop(address).name))

    def write(self, address: int, data: torch.Tensor) -> None:
        """See `Card.write`."""
        self.log.append(("write", str(data.nbytes)))
        self.view(address, data.nbytes, lambda: None).copy_(data)

    def view(self, address: int, size_bytes: int, released: Callable[[], None]) -> torch.Tensor:
        """See `Card.view`."""
        import torch

        array = np.ctypeslib.as_array((ctypes.c_ubyte * size_bytes).from_address(address))
        weakref.finalize(array, released).atexit = False
        return torch.from_numpy(array)

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Card.take`."""
        self.log.append(("take", str(tensor.nbytes)))
        return tensor.clone()

    def event(self) -> CardEvent:
        """See `Card.event`."""
        return _FakeEvent(self, f"event-{next(_numbers)}")

    def open_event(self, handle: bytes) -> CardEvent:
        """See `Card.open_event`."""
        return _FakeEvent(self, handle.rstrip(b"\0").decode())

    def until_idle(self) -> None:
        """Wait for `finish`."""
        self._idle.wait()

    def _map(self, path: Path, owned: dict[int, _Memory]) -> int:
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        owned[address] = _Memory(path.name, mapped, address)
        return address


_OFFSET_BYTES: Final = 512


class _FakeEvent:
    def __init__(self, card: FakeCard, name: str) -> None:
        self._card = card
        self._name = name

    def handle(self) -> bytes:
        return _handle(self._name)

    def record(self) -> None:
        self._card.log.append(("record", self._name))

    def wait(self) -> None:
        self._card.log.append(("wait", self._name))

    def synchronize(self) -> None:
        self._card.until_idle()
        self._card.log.append(("synchronize", self._name))


def _handle(name: str) -> bytes:
    return name.encode().ljust(HANDLE_BYTES, b"\0")
