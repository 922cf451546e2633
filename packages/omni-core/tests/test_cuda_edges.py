"""Tensors of a card from one codec to another, over a fake card that needs none."""

from __future__ import annotations

import dataclasses
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from omni_core import relay
from omni_core.addresses import address, segments
from omni_core.codec import INLINE_LIMIT_BYTES, Codec, Refused, batch
from omni_core.errors import ConfigError, ProtocolError
from omni_core.messages import (
    PROTOCOL_VERSION,
    Emit,
    PeerDied,
    Setup,
    StageDoc,
    StreamChunk,
    ToCoordinator,
    ToStage,
)
from omni_core.relay.cuda_edges import CardEdges
from omni_core.relay.cuda_ipc import CudaIpcRelay
from omni_core.relay.cuda_ledger import CardReference
from omni_core.relay.cuda_lender import CardPool, card_pool
from omni_core.relay.slabs import SharedMemory
from omni_core.stage.process import Home, StageProcess
from omni_core.testing.cards import FakeCard
from omni_core.types import AudioDelta

torch = pytest.importorskip("torch")

SLOT = 4 * INLINE_LIMIT_BYTES
POOL = CardPool(slot_bytes=SLOT, slots=4, direct_tickets=2, direct_bytes=16 * SLOT)
CARDS = {
    "thinker": {"thinker": "cpu"},
    "talker": {"talker": "cpu", "vocoder": "cpu:1"},  # the fake card is what torch calls "cpu"
    "other": {"talker": "cpu:1"},
}


class Peer:
    """One process: a card, shared memory, and the codec over both."""

    def __init__(self, directory: Path, name: str) -> None:
        (directory / "cards").mkdir(exist_ok=True)
        self.card = FakeCard(directory / "cards")
        self.shm = SharedMemory(directory, name)
        self.edges = CardEdges(CudaIpcRelay(directory, name, [self.card], POOL), name, CARDS)
        self.codec = Codec(self.shm)
        self.codec.use_cards(self.edges)

    def close(self) -> None:
        self.edges.close()
        self.shm.close()

    def lent(self) -> tuple[float, float, float]:
        """(slots of the card, direct bytes, slots of shared memory) that are out."""
        stats = self.codec.stats()
        names = ("card_slots_lent", "card_direct_lent_bytes", "slots_used")
        return tuple(stats[name] for name in names)  # type: ignore[return-value]


@pytest.fixture
def thinker(tmp_path: Path) -> Iterator[Peer]:
    made = Peer(tmp_path, "thinker")
    yield made
    made.close()
    assert not list(tmp_path.glob("thinker@*"))


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[Peer]:
    made = Peer(tmp_path, "talker")
    yield made
    made.close()


def chunk(data: Any, target: str = "talker") -> StreamChunk:
    return StreamChunk(request_id="r#1", source="thinker", target=target, data=data)


def rows(count: int, seed: int = 0) -> torch.Tensor:
    """Floats of so many KiB."""
    return torch.from_numpy(np.random.default_rng(seed).random((count, 256), np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_a_tensor_stays_on_the_card_that_both_ends_use(
    thinker: Peer, talker: Peer, dtype: str
) -> None:
    sent = rows(120).to(getattr(torch, dtype))[:, ::2]  # with gaps
    frames = thinker.codec.encode(chunk({"rows": sent}), "talker")
    assert len(frames) == 1
    assert len(frames[0]) < 512
    taken = talker.codec.decode(frames, ToStage).data["rows"]
    assert taken.dtype == sent.dtype
    assert torch.equal(taken, sent)
    assert ("write", str(sent.nbytes)) in thinker.card.log
    assert thinker.codec.stats()["card_bytes_pooled"] == sent.nbytes
    part = taken[3:5]
    del taken
    assert thinker.lent() == (1, 0, 0), "a part still needs the slot"
    del part
    assert thinker.lent() == (0, 0, 0)


def test_a_tensor_larger_than_a_slot_is_lent_where_it_lies(thinker: Peer, talker: Peer) -> None:
    flat = thinker.card.tensor(np.arange(2 * SLOT).astype(np.uint8))
    sent = flat.view(torch.float32).reshape(2, -1)
    taken = talker.codec.decode(thinker.codec.encode(chunk(sent), "talker"), ToStage).data
    assert thinker.lent() == (0, 2 * SLOT, 0)
    flat[0] += 1
    assert torch.equal(taken.view(torch.uint8), sent.view(torch.uint8)), "one memory"
    del taken
    talker.edges.close()
    assert thinker.lent() == (0, 0, 0)


def test_a_full_card_sends_the_rest_through_shared_memory(thinker: Peer, talker: Peer) -> None:
    sent = [rows(60, seed) for seed in range(6)]
    messages = [thinker.codec.encode(chunk(one), "talker") for one in sent]
    assert thinker.lent() == (4, 0, 2)
    assert thinker.codec.stats()["card_full"] == 2
    for frames, one in zip(messages, sent, strict=True):
        assert torch.equal(talker.codec.decode(frames, ToStage).data, one)
    assert thinker.lent() == (0, 0, 0)


@pytest.mark.parametrize(
    ("process", "stage"),
    [("talker", "vocoder"), ("other", "talker"), ("nobody", "talker"), ("talker", "decode")],
)
def test_a_reader_elsewhere_gets_it_through_shared_memory(
    thinker: Peer, tmp_path: Path, process: str, stage: str
) -> None:
    host = SharedMemory(tmp_path, process)
    taken = Codec(host).decode(thinker.codec.encode(chunk(rows(60), stage), process), ToStage)
    assert torch.equal(taken.data, rows(60))
    stats = thinker.codec.stats()
    assert (stats["card_elsewhere"], stats["card_bytes_pooled"]) == (1, 0)
    assert stats["bytes_lent"] == 60 * 1024
    host.close()


def test_small_tensors_and_arrays_go_as_ever(thinker: Peer, talker: Peer) -> None:
    data = [rows(1), rows(60).numpy()]
    one, other = talker.codec.decode(thinker.codec.encode(chunk(data), "talker"), ToStage).data
    assert torch.equal(one, data[0])
    np.testing.assert_array_equal(other, data[1])
    assert thinker.codec.stats()["bytes_inline"] == 1024
    assert thinker.codec.stats()["bytes_lent"] == 60 * 1024
    assert thinker.card.log == talker.card.log == []


def test_events_for_the_coordinator_leave_the_card(thinker: Peer, tmp_path: Path) -> None:
    event = AudioDelta(samples=np.ones(SLOT, np.float32), sample_rate=1)
    host = SharedMemory(tmp_path, "coordinator")
    sent = thinker.codec.encode(Emit(request_id="r", stage="thinker", event=event), "coordinator")
    assert Codec(host).decode(sent, ToCoordinator).event.samples.sum() == SLOT
    host.close()


def test_what_a_dead_reader_was_lent_comes_back_and_its_successor_is_lent_to(
    thinker: Peer, talker: Peer
) -> None:
    unread, held = (thinker.codec.encode(chunk(rows(60)), "talker") for _ in range(2))
    taken = talker.codec.decode(held, ToStage).data
    thinker.codec.encode(chunk(thinker.card.tensor(np.zeros(2 * SLOT, np.uint8))), "talker")
    assert thinker.lent() == (2, 2 * SLOT, 0)
    thinker.codec.forget("talker")
    assert thinker.lent() == (0, 0, 0)
    thinker.codec.encode(chunk(rows(60)), "talker@1")
    assert thinker.lent() == (1, 0, 0)
    del taken
    assert thinker.lent() == (1, 0, 0), "the dead one's word is not its successor's"
    assert len(unread) == 1


def test_a_message_that_cannot_be_sent_or_read_gives_back_what_it_was_lent(
    thinker: Peer, talker: Peer
) -> None:
    with pytest.raises(TypeError):
        thinker.codec.encode(chunk([rows(60), object()]), "talker")
    assert thinker.lent() == (0, 0, 0)
    frames = thinker.codec.encode(chunk(rows(60)), "talker")
    assert thinker.lent() == (1, 0, 0)
    [refused] = talker.codec.decode_batch([batch(frames)], ToCoordinator)
    assert isinstance(refused, Refused)
    assert thinker.lent() == (0, 0, 0)


def spoiled(frames: Any, **changes: Any) -> list[bytes]:
    """The same message with another reference to its one tensor."""
    message = msgspec.msgpack.decode(frames[0])
    ref = msgspec.msgpack.decode(message["data"].data)
    for place, name in ((0, "kind"), (1, "dtype"), (2, "shape")):
        ref[place] = changes.pop(name, ref[place])
    ref[7] = replace(msgspec.convert(ref[7], CardReference), **changes)
    message["data"] = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(ref))
    return [msgspec.msgpack.encode(message)]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "numpy", "dtype": "|u1"},
        {"dtype": "float64"},
        {"dtype": "nn"},
        {"shape": [60, 255]},
        {"ledger": "../thinker@1.card-card-0"},
        {"ledger": "nobody@1.card-card-0"},
        {"ticket": 99},
        {"size_bytes": 5 * SLOT},
    ],
)
def test_references_that_are_not_true_are_refused(
    thinker: Peer, talker: Peer, changes: dict[str, Any]
) -> None:
    frames = thinker.codec.encode(chunk(rows(60)), "talker")
    with pytest.raises(ProtocolError):
        talker.codec.decode(spoiled(frames, **changes), ToStage)


def test_a_process_without_cards_refuses_a_reference_to_one(thinker: Peer) -> None:
    frames = thinker.codec.encode(chunk(rows(60)), "talker")
    with pytest.raises(ProtocolError, match="a card, which this process does not use"):
        Codec().decode(frames, ToStage)


def test_a_stage_process_opens_its_cards_and_lends_to_its_peers(tmp_path: Path) -> None:
    segments(tmp_path).mkdir()
    (tmp_path / "cards").mkdir()
    opened = []

    def open_card(device: str) -> FakeCard:
        opened.append(device)
        return FakeCard(tmp_path / "cards")

    home = dataclasses.replace(Home.of_run(tmp_path), open_card=open_card)
    process = StageProcess("thinker", home)
    doc = StageDoc(
        name="thinker",
        factory="omni_core.testing.echo:build_intake",
        process="thinker",
        device="cpu",
        dtype="float32",
    )
    setup = Setup(version=PROTOCOL_VERSION, model_path="m", stages=(doc,), cards=CARDS)
    reader = CudaIpcRelay(segments(tmp_path), "talker", [FakeCard(tmp_path / "cards")])
    codec = Codec()
    codec.use_cards(CardEdges(reader, "talker", CARDS))
    try:
        process._build(setup)
        with zmq.Context() as context, context.socket(zmq.PULL) as ear:
            ear.bind(address(tmp_path, "talker"))
            process.deliver(chunk(rows(60)), "talker")
            assert select.select([ear.getsockopt(zmq.FD)], [], [], 5.0)[0]
            [taken] = codec.decode_batch(ear.recv_multipart(), ToStage)
        assert torch.equal(taken.data, rows(60))
        assert process._relay_stats()["card_slots_lent"] == 1
        del taken
        assert process._relay_stats()["card_slots_lent"] == 0
        process.deliver(chunk(rows(60)), "talker")
        assert process._relay_stats()["card_slots_lent"] == 1
        process._dispatch(PeerDied(process="talker"))
        assert process._relay_stats()["card_slots_lent"] == 0
        assert opened == ["cpu"]
    finally:
        process._close()
        reader.close()
    assert not [path for path in segments(tmp_path).iterdir() if ".card-" in path.name]


def test_the_pool_is_as_large_as_the_operator_says() -> None:
    assert card_pool({}) == CardPool()
    assert card_pool({"OMNI_CARD_POOL_MIB": "128"}).slots == 2 * CardPool().slots
    assert card_pool({"OMNI_CARD_POOL_MIB": "1"}).slots == 1
    with pytest.raises(ConfigError, match="OMNI_CARD_POOL_MIB is 'much'"):
        card_pool({"OMNI_CARD_POOL_MIB": "much"})


def test_only_the_device_layer_touches_a_device() -> None:
    sources = {path.name: path.read_text() for path in Path(relay.__path__[0]).glob("*.py")}
    touching = {
        name for name, text in sources.items() if "torch.cuda" in text or "import ctypes" in text
    }
    assert touching == {"cuda_device.py"}
