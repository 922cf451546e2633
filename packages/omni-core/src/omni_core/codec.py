"""Messages to ZMQ frames and back; tensors ride beside the header, never inside it.

A message is one msgpack header frame plus zero or more frames of raw tensor bytes. Each tensor in
the header is an extension value that says where its bytes are: in a frame, or in a shared-memory
segment if it is large. Knows encodings. Knows nothing of sockets or stages.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from math import prod
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from omni_core.errors import ProtocolError
from omni_core.messages import AnyMessage
from omni_core.relay.shm import SharedMemory

Frame: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
_Kind: TypeAlias = Literal["numpy", "torch"]
_TENSOR_EXT: Final = 1
INLINE_LIMIT_BYTES: Final = 16 * 1024
"""Larger tensors go through shared memory: about where two copies cost more than a mapping."""

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError)
"""What msgspec raises for bytes that are no message, and Python for no bytes."""


class _TensorRef(msgspec.Struct, frozen=True, array_like=True):
    kind: _Kind
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    frame: int
    """Index of the frame with the bytes; 0 if they are in `segment`."""
    segment: str


class _Address(msgspec.Struct):
    request_id: str


class Codec:
    """Encoder and decoder of one process; `shm` None keeps everything inline."""

    def __init__(self, shm: SharedMemory | None = None) -> None:
        self._shm = shm
        self.bytes_inline = 0
        self.bytes_shared = 0

    def encode(self, message: AnyMessage) -> list[Frame]:
        """Frames to send, header first; they share no memory with the message.

        TypeError or OverflowError if it holds anything but plain data and tensors.
        """
        outgoing = _Outgoing(self._shm)
        try:
            header = msgspec.msgpack.Encoder(enc_hook=outgoing.place).encode(message)
        except BaseException:
            outgoing.discard()
            raise
        self.bytes_inline += outgoing.bytes_inline
        self.bytes_shared += outgoing.bytes_shared
        return [header, *outgoing.frames]

    def decode(self, frames: Sequence[Frame], kind: Any) -> Any:
        """The message; ProtocolError if the frames are not one of `kind` (a union of messages)."""
        incoming = _Incoming(self._shm, frames)
        decoder = msgspec.msgpack.Decoder(kind, ext_hook=incoming.tensor, dec_hook=_expect_instance)
        try:
            return decoder.decode(frames[0])
        except _UNREADABLE as exc:
            raise ProtocolError(f"undecodable message: {exc}") from exc

    def request_of(self, frames: Sequence[Frame]) -> str | None:
        """The request a message that `decode` refused was about, if its header says so."""
        try:
            return msgspec.msgpack.decode(frames[0], type=_Address).request_id
        except _UNREADABLE:
            return None


class _Outgoing:
    """Places the tensors of one message."""

    def __init__(self, shm: SharedMemory | None) -> None:
        self._shm = shm
        self._segments: list[str] = []
        self.frames: list[Frame] = []
        self.bytes_inline = 0
        self.bytes_shared = 0

    def place(self, value: object) -> msgspec.msgpack.Ext:
        """msgspec's enc_hook: called for every value that is not plain data."""
        kind, dtype, shape, data = _raw(value)
        frame, segment = 0, ""
        if self._shm is not None and data.nbytes > INLINE_LIMIT_BYTES:
            segment = self._shm.write(data)
            self._segments.append(segment)
            self.bytes_shared += data.nbytes
        else:
            self.frames.append(bytes(data))  # the sender may reuse its buffer at once
            frame = len(self.frames)
            self.bytes_inline += data.nbytes
        ref = _TensorRef(kind, dtype, shape, frame, segment)
        return msgspec.msgpack.Ext(_TENSOR_EXT, msgspec.msgpack.encode(ref))

    def discard(self) -> None:
        """The message will not be sent."""
        if self._shm is not None:
            for segment in self._segments:
                self._shm.discard(segment)


class _Incoming:
    """Finds the tensors of one message."""

    def __init__(self, shm: SharedMemory | None, frames: Sequence[Frame]) -> None:
        self._shm = shm
        self._frames = frames

    def tensor(self, code: int, data: memoryview) -> Any:
        """msgspec's ext_hook."""
        if code != _TENSOR_EXT:
            raise ProtocolError(f"unknown extension {code}")
        ref = msgspec.msgpack.decode(data, type=_TensorRef)
        payload = self._bytes(ref)
        try:
            return _rebuild(ref, payload)
        except (TypeError, ValueError, AttributeError, RuntimeError) as exc:
            raise ProtocolError(f"bad tensor {ref.dtype!r} {ref.shape}: {exc}") from exc

    def _bytes(self, ref: _TensorRef) -> Frame:
        if ref.frame > 0:
            if ref.frame >= len(self._frames):
                raise ProtocolError(f"tensor frame {ref.frame} is missing")
            # A copy: frames of a socket are read-only, and these are small.
            return bytearray(self._frames[ref.frame])
        if self._shm is None:
            raise ProtocolError("a tensor came by shared memory, which this process does not use")
        return self._shm.read(ref.segment)


def _raw(value: object) -> tuple[_Kind, str, tuple[int, ...], memoryview]:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return "numpy", array.dtype.str, value.shape, array.reshape(-1).view(np.uint8).data
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        dtype = str(value.dtype).removeprefix("torch.")
        return "torch", dtype, tuple(value.shape), memoryview(flat.numpy())
    raise TypeError(f"{type(value).__name__} cannot cross a process; send plain data or tensors")


def _rebuild(ref: _TensorRef, data: Frame) -> Any:
    if ref.kind == "numpy":
        dtype = np.dtype(ref.dtype)
        if dtype.hasobject:
            raise ProtocolError("arrays of objects are refused")
        _check_size(ref, dtype.itemsize, data)
        return np.frombuffer(data, dtype=dtype).reshape(ref.shape)
    import torch

    dtype_torch = getattr(torch, ref.dtype)
    if not isinstance(dtype_torch, torch.dtype):
        raise ProtocolError(f"unknown tensor dtype {ref.dtype!r}")
    _check_size(ref, dtype_torch.itemsize, data)
    if prod(ref.shape) == 0:
        return torch.empty(ref.shape, dtype=dtype_torch)
    return torch.frombuffer(data, dtype=dtype_torch).reshape(ref.shape)


def _check_size(ref: _TensorRef, item_bytes: int, data: Frame) -> None:
    need, have = prod(ref.shape) * item_bytes, memoryview(data).nbytes
    if need != have:
        raise ProtocolError(f"a tensor of {need} bytes came with {have}")


def _expect_instance(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected an array, got {type(value).__name__}")
    return value
