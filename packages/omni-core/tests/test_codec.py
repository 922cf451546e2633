"""Messages to frames and back, and frames nobody should believe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from omni_core.codec import INLINE_LIMIT_BYTES, PIECE_BYTES, Codec, Refused, batch
from omni_core.errors import ProtocolError
from omni_core.messages import DataReady, Emit, StreamChunk, ToCoordinator, ToStage
from omni_core.relay.local import unshare
from omni_core.relay.slabs import SharedMemory
from omni_core.tensors import tensor_over
from omni_core.types import AudioDelta, CodecDelta, RequestParams

LARGE = INLINE_LIMIT_BYTES + 8


def chunk(data: Any) -> StreamChunk:
    return StreamChunk(request_id="r#1", source="a", target="b", data=data)


def round_trip(data: Any, codec: Codec | None = None) -> Any:
    codec = codec or Codec()
    return codec.decode(codec.encode(chunk(data)), ToStage).data


def frames_of(ref: list[Any], *tensors: bytes) -> list[bytes]:
    """A chunk whose data is a tensor described by `ref`: kind, dtype, shape, frame, data, slab."""
    ext = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(ref))
    return [msgspec.msgpack.encode(chunk(ext)), *tensors]


def slab(
    pool: str, generation: int = 1, runs: Any = ((0, 1),), size_bytes: int = 8
) -> tuple[Any, ...]:
    """What a reference to shared memory looks like on the wire."""
    return pool, generation, runs, size_bytes, False, False


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[SharedMemory]:
    made = SharedMemory(tmp_path, "a")
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
)
def test_numpy_dtypes_round_trip(dtype: str) -> None:
    array = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    back = round_trip(array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(2.5),
        np.zeros((0, 4), np.float32),
        np.arange(24).reshape(4, 6)[::2, 1::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([1 + 2j]),
        np.array([1, 2], dtype=">i4"),
    ],
    ids=["0-d", "empty", "strided", "fortran", "complex", "big-endian"],
)
def test_numpy_layouts_round_trip(array: np.ndarray) -> None:
    back = round_trip(array)
    assert (back.shape, back.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_torch_dtypes_round_trip(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).t().to(dtype)
    back = round_trip(tensor)
    assert back.dtype is dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.arange(8.0)[2:3:4],
        torch.arange(12.0).reshape(3, 4)[1:2, 1:2],
    ],
    ids=["0-d", "empty", "bool", "one-of-a-stride", "one-of-a-table"],
)
def test_torch_layouts_round_trip(tensor: torch.Tensor) -> None:
    back = round_trip(tensor)
    assert (back.shape, back.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(back, tensor)


def test_a_tensor_that_asks_for_gradients_travels_as_values() -> None:
    assert torch.equal(round_trip(torch.ones(2, requires_grad=True)), torch.ones(2))


def test_nested_payloads_round_trip() -> None:
    data = {
        "text": "é",
        "raw": b"\0\xff",
        "numbers": [1, -2, 2.5, None, True],
        "deep": {"list": [np.arange(3), {"t": torch.ones(2)}]},
    }
    back = round_trip(data)
    assert {key: back[key] for key in ("text", "raw", "numbers")} == {
        key: data[key] for key in ("text", "raw", "numbers")
    }
    np.testing.assert_array_equal(back["deep"]["list"][0], np.arange(3))
    assert torch.equal(back["deep"]["list"][1]["t"], torch.ones(2))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_large_tensors_ride_in_shared_memory(shm: SharedMemory, kind: str) -> None:
    codec = Codec(shm)
    array = np.arange(LARGE, dtype=np.uint8)
    frames = codec.encode(chunk(array if kind == "numpy" else torch.from_numpy(array)))
    assert len(frames) == 1
    stats = codec.stats()
    assert (stats["bytes_inline"], stats["bytes_lent"]) == (0, LARGE)
    back = codec.decode(frames, ToStage).data
    assert codec.stats()["slots_used"] == 1
    np.testing.assert_array_equal(np.asarray(back), array)
    del back
    assert codec.stats()["slots_used"] == 0


def test_an_array_in_shared_memory_cannot_be_written_to(shm: SharedMemory) -> None:
    codec = Codec(shm)
    back = codec.decode(codec.encode(chunk(np.zeros(LARGE))), ToStage).data
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1.0
    assert torch.equal(tensor_over(back), torch.zeros(LARGE, dtype=torch.float64))


@pytest.mark.filterwarnings("error")
def test_a_torch_tensor_in_shared_memory_comes_without_a_warning(shm: SharedMemory) -> None:
    codec = Codec(shm)
    sent = torch.randn(3, LARGE).to(torch.bfloat16)
    assert torch.equal(codec.decode(codec.encode(chunk(sent)), ToStage).data, sent)


def test_small_tensors_ride_inline(shm: SharedMemory) -> None:
    codec = Codec(shm)
    frames = codec.encode(chunk([np.zeros(4), np.ones(INLINE_LIMIT_BYTES, np.uint8)]))
    assert len(frames) == 1
    assert codec.stats()["bytes_lent"] == 0


def test_frames_share_no_memory_with_the_message() -> None:
    buffer = np.zeros(3)
    frames = Codec().encode(chunk(buffer))
    buffer[:] = 7
    np.testing.assert_array_equal(Codec().decode(frames, ToStage).data, np.zeros(3))


@pytest.mark.parametrize(
    "value", [object(), {1, 2, object()}, np.float64(1.0), np.int64(1), np.array([object()])]
)
def test_other_objects_are_refused_across_processes(value: Any) -> None:
    with pytest.raises(TypeError):
        Codec().encode(chunk({"x": value}))


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.float64(1.0), RequestParams(), bytearray(2)]
)
def test_other_objects_are_refused_inside_a_process_too(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot cross a process; send plain data or tensors"):
        unshare(chunk({"x": [value]}))


def test_a_message_that_is_not_sent_leaves_nothing_in_shared_memory(shm: SharedMemory) -> None:
    with pytest.raises(TypeError):
        Codec(shm).encode(chunk([np.zeros(LARGE), np.zeros(LARGE), object()]))
    assert shm.stats()["slots_used"] == 0
    assert shm.stats()["bytes_lent"] == 2 * 8 * LARGE


@pytest.mark.parametrize("spoil", ["whole", "type", "tensor"])
def test_a_refused_message_leaves_nothing_in_shared_memory(shm: SharedMemory, spoil: str) -> None:
    codec, large = Codec(shm), np.zeros(LARGE)
    match spoil:
        case "whole":
            message = chunk([large, msgspec.msgpack.Ext(9, b"x"), large])
        case "type":
            message = msgspec.structs.replace(chunk([large, large]), request_id=3)
        case "tensor":
            bad = msgspec.msgpack.encode(["numpy", "<f4", [2], 0])
            message = chunk([large, msgspec.msgpack.Ext(1, bad), large])
    [frame] = codec.encode(message)
    assert shm.stats()["slots_used"] > 0
    [refused] = codec.decode_batch([batch([frame])], ToStage)
    assert isinstance(refused, Refused)
    assert shm.stats()["slots_used"] == 0


def test_events_keep_their_arrays() -> None:
    codec = Codec()
    audio = AudioDelta(samples=np.linspace(-1, 1, 5, dtype=np.float32), sample_rate=24_000)
    codes = CodecDelta(codes=np.arange(6).reshape(2, 3))
    for event, name in ((audio, "samples"), (codes, "codes")):
        sent = Emit(request_id="r", stage="voice", event=event)
        back = codec.decode(codec.encode(sent), ToCoordinator).event
        assert type(back) is type(event)
        np.testing.assert_array_equal(getattr(back, name), getattr(event, name))


# -- handing over inside a process


def test_two_readers_never_share_a_container() -> None:
    array = np.arange(3)
    sent = DataReady(
        request_id="r",
        source="a",
        target="b",
        params=RequestParams(),
        payload={"list": [1, {"k": array}], "pair": (1, 2)},
    )
    one, other = unshare(sent).payload, unshare(sent).payload
    one["list"][1]["k"] = None
    one["list"].append(2)
    assert other == sent.payload | {"pair": [1, 2]}
    assert other["list"][1]["k"] is array


def test_a_tensor_for_another_host_takes_frames_of_bounded_size() -> None:
    large = np.arange(PIECE_BYTES // 4 + 3, dtype=np.int32)
    frames = Codec().encode(chunk([large, np.ones(INLINE_LIMIT_BYTES + 1, np.uint8)]))
    assert [len(frame) for frame in frames[1:]] == [PIECE_BYTES, 12, INLINE_LIMIT_BYTES + 1]
    back, ones = Codec().decode(frames, ToStage).data
    np.testing.assert_array_equal(back, large)
    assert ones.sum() == INLINE_LIMIT_BYTES + 1
    with pytest.raises(ProtocolError, match="missing"):
        Codec().decode(frames[:2], ToStage)


# -- frames nobody should believe


def test_a_frame_is_one_tensors_alone() -> None:
    ext = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["numpy", "<f4", [2], 1]))
    frames = [msgspec.msgpack.encode(chunk([ext, ext])), b"\0" * 8]
    with pytest.raises(ProtocolError, match="taken"):
        Codec().decode(frames, ToStage)


def test_a_torch_tensor_is_refused_by_a_process_without_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = Codec().encode(chunk(torch.ones(2)))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ProtocolError, match="torch"):
        Codec().decode(frames, ToStage)


@pytest.mark.parametrize("dtype", ["<U3", "|S3", "<M8[ns]", "<m8[25us]", "|V5", "|b1"])
def test_every_dtype_without_objects_is_read(dtype: str) -> None:
    array = np.zeros(3, dtype)
    assert round_trip(array).dtype == array.dtype


@pytest.mark.parametrize(
    "ref",
    [
        ["numpy", "<f4", [3], 1],  # 12 bytes expected, 8 came
        ["numpy", "<f4", [1], 1],
        ["numpy", "<f4", [-1, -2], 1],
        ["numpy", "<f4", [2], 2],  # no such frame
        ["numpy", "|O", [1], 1],
        ["numpy", "nonsense", [2], 1],
        ["numpy", "<f4,|O", [1], 1],
        ["numpy", "(,)f4", [2], 1],
        ["numpy", "<f4,<f4", [1], 1],
        ["numpy", "|S2147483648", [1], 1],
        ["numpy", "<f4", [2**64 - 1, 0], 0, b""],
        ["torch", "float32", [2**64 - 1, 0], 0, b""],
        ["torch", "nonsense", [2], 1],
        ["torch", "nn", [2], 1],
        ["torch", "__class__", [2], 1],
        ["torch", "float32", [-2, -1], 1],
        ["torch", "float32", [3], 1],
        ["torch", "float32", [2**62, 2**62, 0], 1],
        ["pickle", "<f4", [2], 1],
        ["numpy", "<f4", [2], 0],  # no bytes at all
        ["numpy", "<f4", [2], 0, None, slab("../../etc/passwd@1")],
        ["numpy", "<f4", [2], 0, None, slab("b@1")],  # no such pool
        ["numpy", "<f4", [2], 0, None, slab("a@1", generation=0)],
        ["numpy", "<f4", [2], 0, None, slab("a@1", runs=[])],
        ["numpy", "<f4", [2], 0, None, slab("a@1", runs=[[0, 0]])],
        ["numpy", "<f4", [2], 0, None, slab("a@1", runs=[[-1, 1]])],
        ["numpy", "<f4", [2], 0, None, slab("a@1", size_bytes=0)],
        ["numpy", "<f4", [2], 0, None, slab("a@1", size_bytes=2**62)],
        ["numpy", "<f4", [2], 0, None, "a@1"],
        ["numpy", "<f4", [2], -1],
        ["numpy", "<f4"],
        "text",
    ],
    ids=repr,
)
def test_a_hostile_tensor_is_a_protocol_error(ref: Any, shm: SharedMemory) -> None:
    frames = frames_of(ref, b"\0" * 8)
    with pytest.raises(ProtocolError):
        Codec(shm).decode(frames, ToStage)
    [refused] = Codec(shm).decode_batch([batch(frames[:1]), *frames[1:]], ToStage)
    assert isinstance(refused, Refused)
    assert refused.request_id == "r#1"


def test_a_true_reference_passes_the_same_way(shm: SharedMemory) -> None:
    frames = frames_of(["numpy", "<f4", [2], 1], np.float32([1, 2]).tobytes())
    np.testing.assert_array_equal(Codec(shm).decode(frames, ToStage).data, [1, 2])


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1"],
        [b"\0garbage"],
        [b"\x91" * 100_000],
        [msgspec.msgpack.encode({"type": "Nobody", "request_id": "r"})],
        [msgspec.msgpack.encode({"type": "StreamDone", "request_id": 3})],
        [msgspec.msgpack.encode([1, 2])],
        [msgspec.msgpack.encode(chunk("\u00e9" * 3)).replace(b"\xc3", b"\xff")],
        [msgspec.msgpack.encode(chunk(msgspec.msgpack.Ext(9, b"x")))],
    ],
)
def test_undecodable_frames_are_a_protocol_error(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        Codec().decode(frames, ToStage)


@pytest.mark.parametrize("keep", range(0, 60, 7))
def test_a_truncated_header_is_a_protocol_error(keep: int) -> None:
    [header] = Codec().encode(chunk(np.arange(3)))
    with pytest.raises(ProtocolError):
        Codec().decode([bytes(header)[:keep]], ToStage)


def test_shared_memory_is_refused_by_a_process_without_it() -> None:
    with pytest.raises(ProtocolError, match="does not use"):
        Codec().decode(frames_of(["numpy", "<f4", [2], 0, None, slab("a@1")]), ToStage)


def test_an_event_without_an_array_is_a_protocol_error() -> None:
    event = {"type": "audio", "samples": [0.5], "sample_rate": 1}
    sent = {"type": "Emit", "request_id": "r", "stage": "s", "event": event}
    with pytest.raises(ProtocolError):
        Codec().decode([msgspec.msgpack.encode(sent)], ToCoordinator)


def test_nobody_is_blamed_for_frames_without_a_request() -> None:
    for message in (b"\xc1", msgspec.msgpack.encode({"request_id": 1})):
        [refused] = Codec().decode_batch([batch([message])], ToStage)
        assert refused.request_id is None


def test_a_bad_message_takes_its_own_place_only() -> None:
    good, bad = msgspec.msgpack.encode(chunk(1)), msgspec.msgpack.encode({"request_id": "x"})
    first, refused, last = Codec().decode_batch([batch([good, bad, good])], ToStage)
    assert first == last == chunk(1)
    assert isinstance(refused, Refused)
    assert refused.request_id == "x"


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", batch([b"\x92\x01"])])
def test_a_damaged_batch_is_one_refusal(frame: bytes) -> None:
    [refused] = Codec().decode_batch([frame], ToStage)
    assert isinstance(refused, Refused)
    assert refused.request_id is None
