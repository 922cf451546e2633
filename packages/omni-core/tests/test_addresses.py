"""Who can talk to whom: sockets of a run's directory, and TCP for those who have the secret."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from omni_core.addresses import AddressBook, parse_tcp, seen_from
from omni_core.curve import MAX_FRAME_BYTES, Curve, read_secret
from omni_core.errors import ConfigError

OURS = Curve.derive("a secret that everybody of ours has")
THEIRS = Curve.derive("a secret that somebody else has made")
SOON_MS = 5_000
LATE_MS = 300


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.setsockopt(zmq.LINGER, 0)
    yield made
    made.destroy(linger=0)


@pytest.fixture
def inbound(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    return context.socket(zmq.PULL)


def network(run_dir: Path) -> AddressBook:
    book = AddressBook(run_dir)
    book.open_network(OURS)
    return book


def far(where: str, curve: Curve) -> AddressBook:
    book = AddressBook(None, curve)
    book.learn("voice", seen_from(where, "127.0.0.1"))
    return book


def test_without_keys_there_is_no_network(tmp_path: Path, inbound: zmq.Socket[bytes]) -> None:
    book = AddressBook.of_run(tmp_path)
    assert book.listen(inbound, "voice") == ""
    assert book.is_near("voice")
    book.learn("voice", "tcp://127.0.0.1:1")
    assert not book.connect(inbound.context.socket(zmq.PUSH), "voice")


def test_one_socket_serves_this_host_and_others(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], inbound: zmq.Socket[bytes]
) -> None:
    where = network(tmp_path).listen(inbound, "voice")
    for book in (AddressBook.of_run(tmp_path), far(where, OURS)):
        outbound = context.socket(zmq.PUSH)
        assert book.connect(outbound, "voice")
        outbound.send(b"hello")
        assert inbound.poll(SOON_MS)
        assert inbound.recv() == b"hello"


def test_whoever_lacks_the_secret_is_not_heard(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], inbound: zmq.Socket[bytes]
) -> None:
    where = network(tmp_path).listen(inbound, "voice")
    stranger, nobody = context.socket(zmq.PUSH), context.socket(zmq.PUSH)
    events = stranger.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )
    far(where, THEIRS).connect(stranger, "voice")
    nobody.connect(seen_from(where, "127.0.0.1"))
    for outbound in (stranger, nobody):
        outbound.send(b"let me in")
    assert events.poll(SOON_MS)
    event = int.from_bytes(events.recv_multipart()[0][:2], "little")
    assert event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    stranger.disable_monitor()
    assert not inbound.poll(LATE_MS)


def test_a_frame_that_is_too_large_ends_its_connection_and_nothing_else(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], inbound: zmq.Socket[bytes]
) -> None:
    where = network(tmp_path).listen(inbound, "voice")
    large, small = context.socket(zmq.PUSH), context.socket(zmq.PUSH)
    events = large.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    for outbound in (large, small):
        far(where, OURS).connect(outbound, "voice")
    large.send(bytes(MAX_FRAME_BYTES + 1))
    assert events.poll(SOON_MS)
    large.disable_monitor()
    small.send(b"still there?")
    assert inbound.poll(SOON_MS)
    assert inbound.recv() == b"still there?"


def test_a_process_nobody_has_told_of_cannot_be_reached_yet(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    book = AddressBook(None, OURS)
    outbound = context.socket(zmq.PUSH)
    assert not book.is_near("voice")
    assert not book.connect(outbound, "voice")
    book.learn("voice", "tcp://127.0.0.1:9")
    assert book.connect(outbound, "voice")
    book.forget("voice")
    assert not book.connect(outbound, "voice")


def test_a_taken_address_is_said_to_be_taken(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], inbound: zmq.Socket[bytes]
) -> None:
    book = network(tmp_path)
    where = seen_from(book.listen(inbound, "voice"), "127.0.0.1")
    with pytest.raises(ConfigError, match="choose another address"):
        book.listen(context.socket(zmq.PULL), "other", where)


def test_addresses() -> None:
    assert parse_tcp("tcp://node-1.local:7000") == ("node-1.local", 7000)
    assert parse_tcp("tcp://[fe80::1]:7000") == ("[fe80::1]", 7000)
    assert seen_from("tcp://*:7000", "10.0.0.1") == "tcp://10.0.0.1:7000"
    assert seen_from("tcp://10.0.0.2:7000", "10.0.0.1") == "tcp://10.0.0.2:7000"
    assert seen_from("tcp://[::]:7000", "[fe80::1]") == "tcp://[fe80::1]:7000"
    assert parse_tcp("tcp://*:0", listening=True) == ("*", 0)
    for nowhere in ("tcp://*:7000", "tcp://0.0.0.0:7000", "tcp://[::]:7000", "tcp://host:0"):
        with pytest.raises(ValueError, match="nowhere to connect"):
            parse_tcp(nowhere)
    for bad in (
        "tcp://-x:1",
        "tcp://_x:1",
        "ipc://x",
        "tcp://host",
        "tcp://host:99999",
        "tcp://:1",
        "inproc://x:1",
    ):
        with pytest.raises(ValueError, match="no address"):
            parse_tcp(bad)


def test_an_address_that_zmq_refuses_is_told_as_a_bad_one(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    book = AddressBook(None, OURS)
    book._far["voice"] = "tcp://*:7000"
    with pytest.raises(ValueError, match="cannot be connected to"):
        book.connect(context.socket(zmq.PUSH), "voice")


def test_processes_of_a_run_listen_where_it_does_and_nowhere_else(
    tmp_path: Path, inbound: zmq.Socket[bytes]
) -> None:
    AddressBook(tmp_path).open_network(OURS, "127.0.0.1")
    where = AddressBook.of_run(tmp_path).listen(inbound, "voice")
    assert where.startswith("tcp://127.0.0.1:")


def test_keys_are_kept_for_this_user_only(tmp_path: Path) -> None:
    OURS.save(tmp_path / "curve")
    assert stat.S_IMODE((tmp_path / "curve").stat().st_mode) == 0o600
    assert Curve.load(tmp_path / "other") is None


def test_the_same_secret_gives_the_same_keys(tmp_path: Path, inbound: zmq.Socket[bytes]) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789" * 5 + "\n")
    path.chmod(0o600)
    book = AddressBook(tmp_path)
    book.open_network(read_secret(path))
    outbound = inbound.context.socket(zmq.PUSH)
    where = book.listen(inbound, "voice")
    far(where, Curve.derive("0123456789" * 5)).connect(outbound, "voice")
    outbound.send(b"hello")
    assert inbound.poll(SOON_MS)


@pytest.mark.parametrize(
    ("secret", "mode", "fault"),
    [
        (b"0123456789" * 5, 0o644, "open to other users"),
        (b"short", 0o600, "has 5 characters"),
        (b"\xff" * 40, 0o600, "cannot be read"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_secret_that_is_none_is_refused(
    tmp_path: Path, secret: bytes | None, mode: int, fault: str
) -> None:
    path = tmp_path / "secret"
    if secret is not None:
        path.write_bytes(secret)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=fault):
        read_secret(path)
