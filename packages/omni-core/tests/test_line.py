"""What a connection to another host tells, and that it works on when nobody listens any more."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
import zmq

from omni_core.stage.line import LineState, LineWatch

SOON_MS = 5_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        context.setsockopt(zmq.LINGER, 0)
        yield context
        context.destroy()


def wait_for(watch: LineWatch, state: LineState) -> None:
    news = select.poll()
    news.register(watch.descriptor, select.POLLIN)
    while watch.look() is not state:
        assert news.poll(SOON_MS), f"still {watch.look()}"


def test_a_line_that_has_broken_stays_so(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    outbound, peer = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    port = peer.bind_to_random_port("tcp://127.0.0.1")
    watch = LineWatch(outbound)
    assert watch.look() is LineState.CALLING
    outbound.connect(f"tcp://127.0.0.1:{port}")
    wait_for(watch, LineState.UP)
    peer.close()
    wait_for(watch, LineState.BROKEN)
    again = context.socket(zmq.PULL)
    again.bind(f"tcp://127.0.0.1:{port}")
    outbound.send(b"connected again")
    assert again.poll(SOON_MS)
    assert watch.look() is LineState.BROKEN
    watch.close()


def test_a_line_that_is_watched_no_more_breaks_quietly() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # stuck, it could not be destroyed
    outbound, peer = context.socket(zmq.PUSH), zmq.Context().socket(zmq.PULL)
    port = peer.bind_to_random_port("tcp://127.0.0.1")
    watch = LineWatch(outbound)
    outbound.connect(f"tcp://127.0.0.1:{port}")
    wait_for(watch, LineState.UP)
    watch.close()
    peer.context.destroy(linger=0)
    again = zmq.Context().socket(zmq.PULL)
    again.bind(f"tcp://127.0.0.1:{port}")
    outbound.send(b"the thread that connects is not stuck")
    assert again.poll(SOON_MS)
    outbound.close(0)
    context.destroy(linger=0)
    again.context.destroy(linger=0)
