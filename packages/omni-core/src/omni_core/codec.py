"""Messages to bytes and back, many in one ZMQ message; tensors ride inside, beside or elsewhere.

A ZMQ message is one frame with msgpack messages, plus frames of raw tensor bytes that the last of
them may have. Each tensor is an extension value that holds its bytes if they are few, or says where
they are: in a frame, in shared memory, or on a card. Knows encodings. Knows nothing of sockets.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np

from omni_core.errors import ProtocolError
from omni_core.messages import DataReady, StreamChunk
from omni_core.relay.base import Relay
from omni_core.relay.cuda_ledger import CardReference
from omni_core.relay.pool import Bytes, SlabReference
from omni_core.tensors import (
    TensorKind,
    array_over,
    as_torch,
    flat,
    flat_torch,
    torch_name,
    torch_over,
    torch_over_card,
)

if TYPE_CHECKING:
    import torch

    from omni_core.relay.cuda_edges import CardEdges

Frame: TypeAlias = bytes | bytearray | memoryview
_Shm: TypeAlias = Relay[Bytes, SlabReference]
_TENSOR_EXT: Final = 1
_ARRAY_32: Final = struct.Struct(">BI")
"""msgpack's head of a list: 0xdd and its length."""
INLINE_LIMIT_BYTES: Final = 16 * 1024
"""Larger tensors go through shared memory, or stay on their card: about where two copies cost more
than a mapping."""

PIECE_BYTES: Final = 16 << 20
"""A larger tensor that goes through no memory that both share takes several frames."""
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError)
"""What msgspec raises for bytes that are no message, and Python for no bytes."""
_UNBUILDABLE: Final = (
    TypeError,
    ValueError,
    OverflowError,
    RuntimeError,
    ImportError,
    MemoryError,
)
"""What numpy and torch raise for a tensor that cannot be, and Python where torch is missing."""


class _TensorRef(msgspec.Struct, frozen=True, array_like=True):
    kind: TensorKind
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    frame: int
    """Index of the frame with the bytes; 0 if they are elsewhere."""
    data: bytearray | None = None
    """The bytes themselves. Of a type that the reader may write to."""
    slab: SlabReference | None = None
    pieces: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many frames, from `frame` on, have the bytes between them."""
    card: CardReference | None = None


class _Address(msgspec.Struct):
    request_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Bytes in the place of a message that are none. `request_id` is that of the request they were
    about, if they say so."""

    error: ProtocolError
    request_id: str | None


@dataclass(slots=True)
class _Relays:
    """What carries large tensors, where they do not ride along."""

    shm: _Shm | None
    cards: CardEdges | None = None


class Codec:
    """Encoder and decoder of one process; `shm` None keeps everything out of shared memory.

    Any thread may encode; one alone decodes.
    """

    def __init__(self, shm: _Shm | None = None) -> None:
        self._relays = _Relays(shm)
        self._threads = threading.local()
        self._incoming = _Incoming(self._relays)
        self._kind: Any = None
        """What was decoded last; a process decodes one kind only."""
        self._kinds_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
        self._splitter = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._scavenger = msgspec.msgpack.Decoder(ext_hook=self._incoming.drop)
        self.bytes_inline = 0

    def use_cards(self, cards: CardEdges) -> None:
        """From now on, tensors may stay on their card."""
        self._relays.cards = cards

    def encode(self, message: msgspec.Struct, target: str = "") -> list[Frame]:
        """The message, first, and the frames of its tensors; they share no memory with it. Large
        tensors are placed for the process `target`, which may wait: see `Relay.place`.

        TypeError or OverflowError if it holds anything but plain data and tensors.
        """
        try:
            outgoing: _Outgoing = self._threads.outgoing
        except AttributeError:
            outgoing = self._threads.outgoing = _Outgoing(self._relays)
        frames = outgoing.encode(message, target)
        self.bytes_inline += outgoing.bytes_inline
        return frames

    def decode(self, frames: Sequence[Frame], kind: Any) -> Any:
        """What `encode` was given; ProtocolError if the frames are not one of `kind` (a union of
        messages)."""
        self._incoming.expect(frames)
        return _decode(self._decoder(kind), frames[0])

    def decode_batch(self, frames: Sequence[Frame], kind: Any) -> list[Any]:
        """The messages of a `batch`, in order, each a `kind` or `Refused`."""
        self._incoming.expect(frames)
        decoder = self._decoder(kind)
        try:
            messages: list[Any] = _decode(self._splitter, frames[0])
        except ProtocolError as exc:
            return [Refused(exc, None)]
        for place, raw in enumerate(messages):
            try:
                messages[place] = _decode(decoder, raw)
            except ProtocolError as exc:
                messages[place] = Refused(exc, request_of(raw))
                self._scavenge(raw)
        return messages

    def stats(self) -> dict[str, float]:
        """Bytes of tensors by the way they went, and the numbers of the memory shared."""
        shm, cards = self._relays.shm, self._relays.cards
        shared = {} if shm is None else shm.stats()
        return {
            "bytes_inline": self.bytes_inline,
            **shared,
            **({} if cards is None else cards.stats()),
        }

    def forget(self, process: str) -> None:
        """A process has died: see `Relay.forget`."""
        if self._relays.shm is not None:
            self._relays.shm.forget(process)
        if self._relays.cards is not None:
            self._relays.cards.forget(process)

    def _scavenge(self, raw: Frame) -> None:
        """Release what a refused message was to hold: no other will ever open it."""
        with contextlib.suppress(*_UNREADABLE):
            self._scavenger.decode(raw)

    def _decoder(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        """The last one, as a rule: it costs ten times what decoding a message does."""
        if kind is not self._kind:
            self._kind = kind
            self._kinds_decoder = msgspec.msgpack.Decoder(
                kind, ext_hook=self._incoming.tensor, dec_hook=_expect_instance
            )
        return self._kinds_decoder


def batch(encoded: Sequence[Frame]) -> bytes:
    """The first frame of a ZMQ message with all these messages; the frames of the last one's
    tensors follow it, and the others have none."""
    return b"".join((_ARRAY_32.pack(0xDD, len(encoded)), *encoded))


def request_of(encoded: Frame) -> str | None:
    """The request that an encoded message is about, if it is about one."""
    try:
        return msgspec.msgpack.decode(encoded, type=_Address).request_id
    except _UNREADABLE:
        return None


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: Frame) -> Any:
    try:
        return decoder.decode(data)
    except _UNREADABLE as exc:
        raise ProtocolError(f"undecodable message: {exc}") from exc


class _Outgoing:
    """Encodes messages, one after the other, and places the tensors of each."""

    def __init__(self, relays: _Relays) -> None:
        self._relays = relays
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._place)
        self._refs = msgspec.msgpack.Encoder()
        self._target = ""
        self._stage = ""
        self._slabs: list[SlabReference] = []
        self._loans: list[CardReference] = []
        self._frames: list[Frame] = []
        self.bytes_inline = 0

    def encode(self, message: msgspec.Struct, target: str) -> list[Frame]:
        """The message and its frames; `bytes_inline` is then that of its tensors."""
        self._target, self._slabs, self._frames = target, [], []
        if self._relays.cards is not None:
            self._stage = message.target if isinstance(message, DataReady | StreamChunk) else ""
            self._loans = []
        self.bytes_inline = 0
        try:
            header = self._encoder.encode(message)
        except BaseException:
            self._discard()
            raise
        frames, self._frames = self._frames, []
        return [header, *frames]

    def _place(self, value: object) -> msgspec.msgpack.Ext:
        """msgspec's enc_hook: called for every value that is not plain data."""
        if isinstance(value, np.ndarray) and _is_small(value):
            self.bytes_inline += value.nbytes
            data = bytearray(value.tobytes())
            ref = _TensorRef("numpy", value.dtype.str, value.shape, 0, data)
        elif (loan := self._lend(value)) is not None:
            ref = loan
        else:
            kind, dtype, shape, view = flat(value)
            ref = _TensorRef(kind, dtype, shape, *self._put(view))
        return msgspec.msgpack.Ext(_TENSOR_EXT, self._refs.encode(ref))

    def _lend(self, value: object) -> _TensorRef | None:
        """A tensor that stays on its card, where that can be."""
        cards = self._relays.cards
        tensor = None if cards is None else as_torch(value)
        if cards is None or tensor is None or tensor.nbytes <= INLINE_LIMIT_BYTES:
            return None
        loan = cards.place(flat_torch(tensor), self._target, self._stage)
        if loan is None:
            return None
        self._loans.append(loan)
        return _TensorRef("torch", torch_name(tensor), tuple(tensor.shape), 0, card=loan)

    def _put(self, data: Bytes) -> tuple[int, bytearray | None, SlabReference | None, int]:
        """Where the bytes are now; the sender may reuse its buffer at once."""
        if data.nbytes <= INLINE_LIMIT_BYTES:
            self.bytes_inline += data.nbytes
            return 0, bytearray(data), None, 1
        if self._relays.shm is None:
            self.bytes_inline += data.nbytes
            first = len(self._frames) + 1
            pieces = range(0, data.nbytes, PIECE_BYTES)
            self._frames += [data[start : start + PIECE_BYTES].tobytes() for start in pieces]
            return first, None, None, len(pieces)
        slab = self._relays.shm.place(data, self._target)
        self._slabs.append(slab)
        return 0, None, slab, 1

    def _discard(self) -> None:
        """The message will not be sent."""
        if self._relays.shm is not None:
            for slab in self._slabs:
                self._relays.shm.discard(slab)
        if self._relays.cards is not None:
            for loan in self._loans:
                self._relays.cards.discard(loan)


class _Incoming:
    """Finds the tensors of messages."""

    def __init__(self, relays: _Relays) -> None:
        self._relays = relays
        self._refs = msgspec.msgpack.Decoder(_TensorRef)
        self._frames: list[Frame | None] = []
        """Those that came with the messages now decoded; None for the first, and once taken."""

    def expect(self, frames: Sequence[Frame]) -> None:
        """Tensors are in these from now on, but for the first."""
        self._frames = [None, *frames[1:]]

    def tensor(self, code: int, data: memoryview) -> Any:
        """msgspec's ext_hook."""
        if code != _TENSOR_EXT:
            raise ProtocolError(f"unknown extension {code}")
        ref = self._refs.decode(data)
        try:
            if ref.card is not None:
                return torch_over_card(ref.dtype, ref.shape, self._loan(ref.card))
            return _rebuild(ref, self._bytes(ref))
        except _UNBUILDABLE as exc:
            raise ProtocolError(f"bad tensor {ref.dtype!r} {ref.shape}: {exc}") from exc

    def drop(self, code: int, data: memoryview) -> None:
        """As `tensor`, for one that nobody wants."""
        with contextlib.suppress(ProtocolError, *_UNREADABLE):
            ref = self._refs.decode(data)
            if ref.card is not None:
                self._loan(ref.card)
            elif ref.slab is not None:
                self._bytes(ref)

    def _loan(self, reference: CardReference) -> torch.Tensor:
        if self._relays.cards is None:
            raise ProtocolError("a tensor came by a card, which this process does not use")
        return self._relays.cards.open(reference)

    def _bytes(self, ref: _TensorRef) -> Frame:
        if ref.data is not None:
            return ref.data
        if ref.frame > 0:
            return bytearray().join(self._take(ref))  # a copy: frames of a socket are read-only
        if ref.slab is None:
            raise ProtocolError("a tensor came without its bytes")
        if self._relays.shm is None:
            raise ProtocolError("a tensor came by shared memory, which this process does not use")
        return self._relays.shm.open(ref.slab).data

    def _take(self, ref: _TensorRef) -> list[Frame]:
        """The frames of one tensor, which no other may have: a small message would grow large."""
        place = slice(ref.frame, ref.frame + ref.pieces)
        pieces = [frame for frame in self._frames[place] if frame is not None]
        if len(pieces) != ref.pieces:
            raise ProtocolError(f"tensor frames from {ref.frame} on are missing or taken")
        self._frames[place] = [None] * len(pieces)
        return pieces


def _is_small(array: np.ndarray[Any, Any]) -> bool:
    return array.nbytes <= INLINE_LIMIT_BYTES and not array.dtype.hasobject


def _rebuild(ref: _TensorRef, data: Frame) -> Any:
    """A tensor over the bytes; read-only where they are another process's and the tensor can be."""
    if ref.kind == "torch":
        return torch_over(ref.dtype, ref.shape, data)
    array = array_over(ref.dtype, ref.shape, data)
    if ref.slab is not None:
        array.flags.writeable = False
    return array


def _expect_instance(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected an array, got {type(value).__name__}")
    return value
