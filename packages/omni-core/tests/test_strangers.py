"""Something else answers at the address of a process: whom that costs what."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from omni_core.addresses import COORDINATOR, AddressBook
from omni_core.codec import Codec
from omni_core.coordinator.admission import AdmissionLimits
from omni_core.coordinator.links import CoordinatorLinks
from omni_core.coordinator.runtime import Runtime
from omni_core.curve import Curve
from omni_core.errors import StageDiedError
from omni_core.messages import Fail, StreamDone, ToCoordinator
from omni_core.pipeline import Network, Pipeline
from omni_core.stage.process import Home, StageProcess
from omni_core.testing import echo
from omni_core.types import Message, Request, RequestParams, TextPart

SECRET = "correct horse battery staple, twice over"
PATIENCE_S = 10.0
MANY = 100
"""More than one batch of messages."""


@dataclass(frozen=True)
class Stranger:
    """Speaks, but not as ours do."""

    address: str


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """It answers whoever calls, once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections: list[socket.socket] = []

        def answer() -> None:
            with contextlib.suppress(OSError):  # nobody has called
                connection, _ = listening.accept()
                connections.append(connection)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)

        thread = threading.Thread(target=answer)
        thread.start()
        yield Stranger(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


async def until(condition: Callable[[], bool], attempt: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            attempt()
            await asyncio.sleep(0.01)


def end(request_id: str = "r", target: str = "voice") -> StreamDone:
    return StreamDone(request_id=request_id, source="writer", target=target)


async def test_a_refusal_is_never_heard_in_the_middle_of_a_send(
    tmp_path: Path, stranger: Stranger
) -> None:
    refused: list[str] = []
    book = AddressBook(tmp_path)
    book.open_network(Curve.derive(SECRET))
    links = CoordinatorLinks(book, Codec(), lambda process, requests: refused.extend(requests))
    with contextlib.closing(links):
        links.reach("voice", stranger.address)
        await until(lambda: bool(refused), lambda: links.send("voice", end()))
        refused.clear()
        for number in range(MANY):
            links.send("voice", end(str(number)))
        assert refused == []
        await until(lambda: len(refused) == MANY, lambda: None)
        assert refused == [str(number) for number in range(MANY)]


@pytest.fixture
async def runtime(tmp_path: Path, stranger: Stranger) -> AsyncIterator[Runtime]:
    """All is said to be ready, and the stranger to be a guest."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    model = echo.write_checkpoint(tmp_path / "model")
    pipeline = Pipeline.load(model, plugins=echo.plugins(), device="cpu")
    made = Runtime(
        pipeline._plan,
        lambda stage, text: None,
        limits=AdmissionLimits(max_in_flight=10 * MANY),
        network=Network(listen="tcp://127.0.0.1:0", secret_file=secret, guests=("front",)),
    )
    for replica in made._fleet.replicas:
        replica.state = "ready"
    made._links.reach("front", stranger.address)
    yield made
    await made.close()


async def test_each_request_for_it_fails_once(runtime: Runtime) -> None:
    message = Message(role="user", content=(TextPart(text="a"),))
    request = Request(messages=(message,), params=RequestParams(modalities=("text",)))
    first = []
    await until(
        lambda: any(active.ended for active in first), lambda: first.append(runtime.submit(request))
    )
    before = runtime.coordinator.in_flight  # what was on its way when it answered
    many = [runtime.submit(request) for _ in range(MANY)]
    for active in many:
        events, error = await asyncio.wait_for(active.take(), PATIENCE_S)
        assert isinstance(error, StageDiedError)
        assert (error.message, events) == ("stage process 'front' cannot be reached", [])
        assert active.events.collect() == []
    [front, _] = runtime._fleet.replicas
    assert runtime.coordinator.in_flight == front.load == before


def test_a_stage_process_fails_requests_for_it_and_complains_once(
    stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as coordinator:
        keys = Curve.derive(SECRET)
        book = AddressBook(None, keys, "127.0.0.1")
        book.learn(COORDINATOR, AddressBook(None, keys, "127.0.0.1").listen(coordinator, "any"))
        book.learn("voice", stranger.address)
        process = StageProcess("front", Home(book=book))
        failed: list[str] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while "last" not in failed:
            assert time.monotonic() < deadline_s
            process.deliver(end("last" if failed else "first"), "voice")
            if coordinator.poll(10):
                [fail] = Codec().decode_batch(coordinator.recv_multipart(), ToCoordinator)
                assert isinstance(fail, Fail)
                assert (fail.error.kind, fail.error.status) == ("StageDiedError", 503)
                assert fail.error.message == "process 'voice' cannot be reached from 'front'"
                failed.append(fail.request_id)
        process._close()
    assert caplog.text.count("at the address of process 'voice'") == 1
