"""One card, as far as processes share its memory: allocate, export, map, order.

`Card` is all that `cuda_ipc` asks of a device. `CudaCard` is the real one: memory through the
driver's IPC calls, tensors over mapped memory through the CUDA array interface, order through
torch's interprocess events. All of these are public; `torch.multiprocessing`'s own way is not, and
leaves files in /dev/shm when its process is killed. Knows nothing of slots or messages.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from omni_core.errors import OutOfMemoryError, ProtocolError, StageError

if TYPE_CHECKING:
    import torch

HANDLE_BYTES: Final = 64
"""Of a memory or event handle; the driver fixes it."""


@dataclass(frozen=True, slots=True)
class Export:
    """Where another process finds bytes of ours: in this allocation, from this byte on."""

    handle: bytes
    offset: int


class CardEvent(Protocol):
    """A point in a card's work that processes wait for without holding up the host."""

    def handle(self) -> bytes:
        """What `Card.open_event` of another process takes."""

    def record(self) -> None:
        """Move the point to the end of what is queued now."""

    def wait(self) -> None:
        """Let what is queued from now on run after the point."""

    def synchronize(self) -> None:
        """Hold up the calling thread until the point is reached."""


class Card(Protocol):
    """One card; callable from any thread. Whoever allocates frees, whoever opens closes."""

    device: str
    """In torch's words, as this process numbers its cards."""
    uuid: str
    """The same in every process."""

    def allocate(self, size_bytes: int) -> int:
        """The address of fresh memory that can be exported; OutOfMemoryError."""

    def free(self, address: int) -> None:
        """Give memory of `allocate` back."""

    def export(self, address: int) -> Export | None:
        """How others reach memory of this process; None if its allocator keeps it from them."""

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; ProtocolError if it is gone."""

    def close(self, address: int) -> None:
        """Unmap what `open` gave."""

    def write(self, address: int, data: torch.Tensor) -> None:
        """Queue a copy of flat bytes into memory of ours."""

    def view(self, address: int, size_bytes: int, released: Callable[[], None]) -> torch.Tensor:
        """Memory as a flat uint8 tensor; `released` is called when nobody has it any more."""

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a view in memory of this process; OutOfMemoryError."""

    def event(self) -> CardEvent:
        """A new event that other processes can open; StageError if there are none."""

    def open_event(self, handle: bytes) -> CardEvent:
        """An event of another process."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class _Region:
    """Foreign memory for torch, which keeps this object as long as a tensor lies over it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class CudaCard:
    """A card of this machine. Making one starts CUDA in this process."""

    def __init__(self, index: int) -> None:
        self.device = f"cuda:{index}"
        self._index = index
        self._driver = _Driver(index)
        self.uuid = self._driver.uuid()

    def allocate(self, size_bytes: int) -> int:
        """See `Card.allocate`."""
        return self._driver.allocate(size_bytes)

    def free(self, address: int) -> None:
        """See `Card.free`."""
        self._driver.free(address)

    def export(self, address: int) -> Export | None:
        """See `Card.export`. Expandable segments of torch's allocator cannot be exported."""
        return self._driver.export(address)

    def open(self, handle: bytes) -> int:
        """See `Card.open`."""
        return self._driver.open(handle)

    def close(self, address: int) -> None:
        """See `Card.close`."""
        self._driver.close(address)

    def write(self, address: int, data: torch.Tensor) -> None:
        """See `Card.write`."""
        self._tensor(_Region(address, data.nbytes)).copy_(data, non_blocking=True)

    def view(self, address: int, size_bytes: int, released: Callable[[], None]) -> torch.Tensor:
        """See `Card.view`."""
        region = _Region(address, size_bytes)
        weakref.finalize(region, released).atexit = False
        return self._tensor(region)

    def _tensor(self, region: _Region) -> torch.Tensor:
        import torch

        return torch.as_tensor(region, device=self.device)

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Card.take`."""
        import torch

        try:
            return tensor.clone()
        except torch.OutOfMemoryError as exc:
            raise OutOfMemoryError(f"{self.device} has no {tensor.nbytes} bytes left") from exc

    def event(self) -> CardEvent:
        """See `Card.event`."""
        import torch

        try:
            with torch.cuda.device(self._index):  # an event belongs to the card that is current now
                event = torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
                event.ipc_handle()  # type: ignore[no-untyped-call]
        except RuntimeError as exc:
            raise StageError(f"{self.device} has no events for several processes: {exc}") from exc
        return _CudaEvent(self._index, event)

    def open_event(self, handle: bytes) -> CardEvent:
        """See `Card.open_event`."""
        import torch

        device = torch.device(self.device)
        event = torch.cuda.Event.from_ipc_handle(device, handle)  # type: ignore[no-untyped-call]
        return _CudaEvent(self._index, event)


class _CudaEvent:
    """On the calling thread's current stream of the card."""

    def __init__(self, index: int, event: torch.cuda.Event) -> None:
        self._index = index
        self._event = event

    def handle(self) -> bytes:
        return bytes(self._event.ipc_handle())  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record(self._stream())

    def wait(self) -> None:
        self._event.wait(self._stream())

    def synchronize(self) -> None:
        self._event.synchronize()

    def _stream(self) -> torch.cuda.Stream:
        import torch

        if torch.cuda.is_current_stream_capturing():  # a view dropped while a graph is made
            return torch.cuda.default_stream(self._index)
        return torch.cuda.current_stream(self._index)


_OUT_OF_MEMORY: Final = 2
_LAZY_PEER_ACCESS: Final = 1


class _Driver:
    """The calls of libcuda this needs, each in the card's primary context, which torch uses too."""

    def __init__(self, index: int) -> None:
        self._cuda = _library()
        self._device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)

    def uuid(self) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(raw), self._device)
        return bytes(raw).hex()

    def allocate(self, size_bytes: int) -> int:
        address = ctypes.c_uint64()
        with self._current():
            code = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes))
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"the card has no {size_bytes} bytes left to share tensors")
        self._check("cuMemAlloc_v2", code)
        return address.value

    def free(self, address: int) -> None:
        with self._current():
            self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address: int) -> Export | None:
        base, handle = ctypes.c_uint64(), _Handle()
        with self._current():
            self._call(
                "cuMemGetAddressRange_v2", ctypes.byref(base), None, ctypes.c_uint64(address)
            )
            if self._cuda.cuIpcGetMemHandle(ctypes.byref(handle), base) != 0:
                return None
        return Export(bytes(handle), address - base.value)

    def open(self, handle: bytes) -> int:
        if len(handle) != HANDLE_BYTES:
            raise ProtocolError(f"a memory handle of {len(handle)} bytes; it must have 64")
        address = ctypes.c_uint64()
        foreign = _Handle.from_buffer_copy(handle)
        with self._current():
            code = self._cuda.cuIpcOpenMemHandle_v2(
                ctypes.byref(address), foreign, ctypes.c_uint(_LAZY_PEER_ACCESS)
            )
        if code != 0:
            raise ProtocolError(
                f"memory of another process cannot be mapped: {self._name(code)}; if it never can "
                "be here, leave OMNI_CARD_POOL_MIB unset"
            )
        return address.value

    def close(self, address: int) -> None:
        with self._current():
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """A thread that has not used the card yet has no context of its own."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, function: str, *arguments: Any) -> None:
        self._check(function, self._cuda[function](*arguments))

    def _check(self, function: str, code: int) -> None:
        if code != 0:
            raise StageError(f"{function} failed: {self._name(code)}")

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"CUDA error %d" % code).decode()


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        raise StageError("no CUDA driver here: libcuda.so.1 cannot be loaded") from exc


def open_cuda_card(device: str) -> Card:
    """The card of a torch device: "cuda:0"."""
    return CudaCard(int(device.removeprefix("cuda:")))
