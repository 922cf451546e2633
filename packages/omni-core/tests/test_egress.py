"""What leaves a process when, in how many ZMQ messages and in which order."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zmq

from omni_core.addresses import AddressBook
from omni_core.codec import INLINE_LIMIT_BYTES, Codec
from omni_core.curve import MAX_FRAME_BYTES, Curve
from omni_core.errors import PayloadTooLargeError
from omni_core.messages import StreamChunk, ToStage
from omni_core.stage.egress import Egress
from omni_core.stage.ingress import Ingress

PATIENCE_MS = 5000


@dataclass(frozen=True)
class Ends:
    """An egress and, for two of its peers, the socket that they would read."""

    egress: Egress
    ears: dict[str, zmq.Socket[bytes]]

    def arrived(self, peer: str = "a") -> list[StreamChunk]:
        """The messages of the next ZMQ message."""
        assert self.ears[peer].poll(PATIENCE_MS), "nothing came"
        return Codec().decode_batch(self.ears[peer].recv_multipart(), ToStage)

    def numbers(self, peer: str = "a") -> list[int]:
        return [chunk.data for chunk in self.arrived(peer)]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    book = AddressBook.of_run(tmp_path)
    with zmq.Context() as context:
        ears = {peer: context.socket(zmq.PULL) for peer in ("a", "b")}
        for peer, ear in ears.items():
            book.listen(ear, peer, None)
        egress = Egress(context, book, Codec(), never)
        yield Ends(egress, ears)
        egress.close()
        for ear in ears.values():
            ear.close()


def never(peer: str, request_ids: list[str]) -> None:
    raise AssertionError(f"{peer} refused messages of {request_ids}")


def chunk(data: object, request_id: str = "r") -> StreamChunk:
    return StreamChunk(request_id=request_id, source="s", target="t", data=data)


def test_a_thread_without_turns_sends_at_once(ends: Ends) -> None:
    for number in range(3):
        ends.egress.post("a", chunk(number))
        assert ends.numbers() == [number]


def test_what_one_turn_has_for_a_peer_leaves_together(ends: Ends) -> None:
    ends.egress.flush()
    for number in range(3):
        ends.egress.post("a", chunk(number))
        ends.egress.post("b", chunk(-number))
    ends.egress.flush()
    assert ends.numbers("a") == [0, 1, 2]
    assert ends.numbers("b") == [0, -1, -2]


def test_a_large_turn_does_not_wait_for_its_end(ends: Ends) -> None:
    ends.egress.flush()
    for number in range(1000):
        ends.egress.post("a", chunk(number))
    found: list[int] = []
    while len(found) < 900:
        found += ends.numbers()
    assert found == list(range(len(found)))


def test_another_thread_waits_for_nobody_and_keeps_the_order(ends: Ends) -> None:
    """Even while a thread with turns holds messages back for the same peer."""
    ends.egress.flush()
    ends.egress.post("a", chunk(0))
    other = threading.Thread(target=ends.egress.post, args=("a", chunk(1)))
    other.start()
    other.join()
    assert ends.numbers() == [0, 1]


def test_only_the_last_message_of_a_batch_has_frames(ends: Ends) -> None:
    """Without shared memory, large tensors are frames, and each message counts its own."""
    ends.egress.flush()
    large = [np.full(INLINE_LIMIT_BYTES + 1, number, np.uint8) for number in range(2)]
    for item in (0, large[0], large[1], 3):
        ends.egress.post("a", chunk(item))
    ends.egress.flush()
    found = [message.data for _ in range(3) for message in ends.arrived()]
    assert (found[0], found[3]) == (0, 3)
    np.testing.assert_array_equal(found[1], large[0])
    np.testing.assert_array_equal(found[2], large[1])


def test_what_cannot_be_encoded_is_not_in_the_batch(ends: Ends) -> None:
    ends.egress.flush()
    ends.egress.post("a", chunk(0))
    with pytest.raises(TypeError):
        ends.egress.post("a", chunk(object()))
    ends.egress.post("a", chunk(1))
    ends.egress.flush()
    assert ends.numbers() == [0, 1]


def test_one_threads_turn_does_not_end_with_that_of_another(ends: Ends) -> None:
    ends.egress.flush()
    ends.egress.post("a", chunk(0))

    def another() -> None:
        ends.egress.flush()
        ends.egress.post("b", chunk(1))
        ends.egress.flush()

    thread = threading.Thread(target=another)
    thread.start()
    thread.join()
    ends.egress.post("a", chunk(2))
    ends.egress.flush()
    assert ends.numbers() == [0, 2]


def test_closing_sends_what_was_held_back(ends: Ends) -> None:
    ends.egress.flush()
    ends.egress.post("a", chunk(0))
    ends.egress.close()
    ends.egress.post("a", chunk(1))
    assert ends.numbers() == [0]


def test_an_ingress_says_whether_there_is_more(tmp_path: Path) -> None:
    book = AddressBook.of_run(tmp_path)
    with zmq.Context() as context:
        ingress = Ingress(context, book, "a", Codec(), ToStage)
        egress = Egress(context, book, Codec(), never)
        taken: list[int] = []
        bursts = 0
        for number in range(100):
            egress.post("a", chunk(number))
        poller = zmq.Poller()
        poller.register(ingress.descriptor, zmq.POLLIN)
        while len(taken) < 100:
            if not ingress.more:
                assert poller.poll(PATIENCE_MS), f"{len(taken)} of 100 came"
            taken += [message.data for message in ingress.read()]
            bursts += 1
        assert taken == list(range(100))
        assert bursts > 100 // 16, "a flood is read in bursts"
        egress.close()
        context.destroy(linger=0)


def test_a_message_for_another_host_leaves_room_for_its_batch() -> None:
    with zmq.Context() as context:
        egress = Egress(context, AddressBook(None, Curve.derive("a secret")), Codec(), never)
        with pytest.raises(PayloadTooLargeError, match="in one piece"):
            egress.post("far", chunk(bytes(MAX_FRAME_BYTES - 1000)))
        egress.close()


def test_a_stranger_at_a_peers_address_costs_the_requests_sent_there() -> None:
    refused: list[tuple[str, list[str]]] = []
    book = AddressBook(None, Curve.derive("a secret"))
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as stranger:
        where = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        book.learn("far", where)
        egress = Egress(context, book, Codec(), lambda *news: refused.append(news))
        egress.post("far", chunk(0, "before anybody answers"))
        with stranger.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
            keep_posting(egress, until=lambda: bool(refused))
        egress.flush()  # this thread works in turns from now on
        for request_id in ("two", "three", "three"):
            egress.post("far", chunk(2, request_id))
        egress.flush()
        assert refused == [("far", ["one"]), ("far", ["two", "three"])]

        stranger.close()
        peer = Ingress(context, book, "far", Codec(), ToStage, tcp=where)
        keep_posting(egress, until=lambda: bool(peer.read()))
        egress.close()
        context.destroy(linger=0)


def test_what_is_said_of_a_refusal_does_not_wait_for_another_turn(tmp_path: Path) -> None:
    book = AddressBook.of_run(tmp_path)
    with zmq.Context() as context:
        ear = context.socket(zmq.PULL)
        book.listen(ear, "told", None)
        egress = Egress(
            context, book, Codec(), lambda peer, ids: egress.post("told", chunk(ids, "news"))
        )
        gone = context.socket(zmq.PULL)
        book.listen(gone, "gone", None)
        egress.flush()  # this thread works in turns from now on
        egress.post("gone", chunk(0))
        egress.flush()
        egress._lines["gone"]._outbound.close(0)
        egress._lines["gone"]._outbound = context.socket(zmq.PUSH)  # which leads nowhere
        egress.post("gone", chunk(1, "lost"))
        egress.flush()
        assert ear.poll(PATIENCE_MS)
        [told] = Codec().decode_batch(ear.recv_multipart(), ToStage)
        assert told.data == ["lost"]
        egress.close()
        context.destroy(linger=0)


def keep_posting(egress: Egress, until: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_MS / 1000
    while not until():
        assert time.monotonic() < deadline_s
        egress.post("far", chunk(1, "one"))
        egress.send_held_back()
        time.sleep(0.01)
