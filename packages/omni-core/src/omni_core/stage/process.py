"""A stage process: handshake, build, then one loop that moves messages.

Knows sockets and threads. Knows nothing of models: factories build the schedulers.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

import zmq

from omni_core.addresses import COORDINATOR, AddressBook, segments
from omni_core.codec import Codec, Refused
from omni_core.errors import ErrorInfo, ProtocolError, StageDiedError
from omni_core.graph import place_of
from omni_core.messages import (
    PROTOCOL_VERSION,
    AbortRequest,
    Crash,
    DataReady,
    Done,
    Emit,
    Fail,
    Hello,
    LogLevel,
    NewWeights,
    PeerAt,
    PeerDied,
    Ping,
    Pong,
    Profile,
    Progress,
    Ready,
    Released,
    Setup,
    Shutdown,
    StageDoc,
    StartTrace,
    StatsQuery,
    StatsReply,
    StopTrace,
    StreamChunk,
    StreamDone,
    ToStage,
    TurnedAway,
)
from omni_core.relay.lender import pool_limits
from omni_core.relay.local import unshare
from omni_core.relay.slabs import SharedMemory
from omni_core.specs import Ref, StageConfig, StageContext
from omni_core.stage.egress import Egress
from omni_core.stage.ingress import Ingress
from omni_core.stage.node import StageNode
from omni_core.stage.wishes import Wishes

if TYPE_CHECKING:
    from omni_core.relay.cuda_device import Card
    from omni_core.relay.cuda_edges import CardEdges

LOG_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"
"""Of a stage process; the launcher knows a warning by its first word."""
_CLOSE_TIMEOUT_S: Final = 5.0
_LINGER_MS: Final = 200

log = logging.getLogger("omni.stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a process finds others, and is found."""

    book: AddressBook
    segments: Path | None = None
    """What it shares memory in; None for a process that is alone on its host."""
    tcp: str | None = None
    open_card: Callable[[str], Card] | None = None
    """The card of a torch device, by default the real one."""

    @classmethod
    def of_run(cls, run_dir: Path) -> Home:
        """For a process that the coordinator started."""
        return cls(book=AddressBook.of_run(run_dir), segments=segments(run_dir))


class StageProcess:
    """Everything one stage process owns. `run` is its main loop."""

    def __init__(self, name: str, home: Home) -> None:
        self._name = name
        self._home = home
        self._book = home.book
        self._cards: CardEdges | None = None
        self._shm: SharedMemory | None = None
        if home.segments is not None:
            limits = pool_limits(home.segments, os.environ)
            self._shm = SharedMemory(home.segments, name, limits, before_wait=self._send_held_back)
        self._codec = Codec(self._shm)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.LINGER, _LINGER_MS)
        self._ingress = Ingress(self._context, home.book, name, self._codec, ToStage, tcp=home.tcp)
        self._egress = Egress(self._context, home.book, self._codec, self._fail_unsent)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._nodes: dict[str, StageNode] = {}
        self._wishes = Wishes(lambda answer: self._egress.post(COORDINATOR, answer))
        self._strangers: set[str] = set()
        """Peers of which it was said that something else answers in their place."""
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Serve until Shutdown or a crash; returns the exit code."""
        news = select.poll()
        self._register(news)
        self._egress.post(COORDINATOR, self._hello())
        while not self._stopping:
            self._look_around()
            if not self._ingress.more:
                woken_by = [descriptor for descriptor, _ in news.poll()]
                if self._wake_read.fileno() in woken_by:
                    self._wake_read.recv(4096)
            self._take(self._ingress.read())
        self._close()
        return self._exit_code

    # -- Links: called by stages, from their threads

    def deliver(self, message: DataReady | StreamChunk | StreamDone, process: str) -> None:
        """See `Links.deliver`."""
        node = self._nodes.get(message.target)
        if node is not None:
            node.receive(unshare(message))
        else:
            self._egress.post(process, message)

    def report(self, message: Emit | Done | Fail | Released) -> None:
        """See `Links.report`."""
        self._egress.post(COORDINATOR, message)

    def flush(self) -> None:
        """See `Links.flush`."""
        self._egress.flush()

    def _send_held_back(self) -> None:
        self._egress.send_held_back()

    # -- what is different on another host

    def _hello(self) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            process=self._name,
            pid=os.getpid(),
            address=self._ingress.address,
        )

    def _register(self, news: select.poll) -> None:
        """Say what wakes the loop."""
        news.register(self._ingress.descriptor, select.POLLIN)
        news.register(self._wake_read, select.POLLIN)

    def _look_around(self) -> None:
        """Called in each turn of the loop."""

    def _meet(self, peer: PeerAt) -> None:
        """Somebody can be reached now."""
        try:
            self._book.learn(peer.process, self._seen_from_here(peer.address))
            self._egress.meet(peer.process)
        except ValueError as exc:
            log.error("process %r cannot be reached: %s", peer.process, exc)

    def _seen_from_here(self, address: str) -> str:
        """A peer's address; ValueError if it is none."""
        return address

    def _leave(self, reason: str) -> None:
        """Stop: we are of no use here."""
        log.error("%s", reason)
        self._stop_failed()

    # -- the loop's verbs

    def _take(self, arrived: list[ToStage | Refused]) -> None:
        for message in arrived:
            if isinstance(message, Refused):
                self._refuse(message.request_id, message.error)
            else:
                self._dispatch(message)

    def _refuse(self, request_id: str | None, error: ProtocolError) -> None:
        """One bad message fails its own request, not the process."""
        log.error("%s", error)
        if request_id is not None:
            info = error.info(self._name)
            self._egress.post(
                COORDINATOR, Fail(request_id=request_id, stage=self._name, error=info)
            )

    def _fail_unsent(self, peer: str, request_ids: list[str]) -> None:
        """What answers where a peer should be is not it."""
        if peer not in self._strangers:
            self._strangers.add(peer)
            log.error("what answers at the address of process %r is not it", peer)
        if peer == COORDINATOR:
            return  # nobody to tell; our line to it is watched
        error = StageDiedError(f"process {peer!r} cannot be reached from {self._name!r}")
        for request_id in request_ids:
            fail = Fail(request_id=request_id, stage=self._name, error=error.info(self._name))
            self._egress.post(COORDINATOR, fail)

    def _dispatch(self, message: ToStage) -> None:
        match message:
            case DataReady() | StreamChunk() | StreamDone():
                if node := self._nodes.get(message.target):
                    node.receive(message)
                else:
                    error = ProtocolError(f"process {self._name!r} has no stage {message.target!r}")
                    self._refuse(message.request_id, error)
            case AbortRequest():
                for node in self._nodes.values():
                    node.abort(message.request_id)
            case PeerAt():
                self._meet(message)
            case TurnedAway():
                self._leave(message.reason)
            case PeerDied():
                self._egress.forget(message.process)
            case Ping() | StatsQuery():
                self._answer(message)
            case Profile() | LogLevel() | NewWeights() | StartTrace() | StopTrace():
                self._wishes.grant(self._name, message)
            case Setup():
                self._build(message)
            case Shutdown():
                self._stopping = True
            case _:
                assert_never(message)

    def _answer(self, query: Ping | StatsQuery) -> None:
        if isinstance(query, Ping):
            self._egress.post(COORDINATOR, Pong(process=self._name))
            return
        try:
            stats = {name: node.stats() for name, node in self._nodes.items()}
            reply = StatsReply(
                query_id=query.query_id,
                process=self._name,
                stats=stats,
                relay=self._relay_stats(),
            )
            self._egress.post(COORDINATOR, reply)
        except Exception:  # process edge: counters of a plugin must not end its process
            log.exception("counters of process %r cannot be told", self._name)
            reply = StatsReply(query_id=query.query_id, process=self._name, stats={})
            self._egress.post(COORDINATOR, reply)

    def _relay_stats(self) -> dict[str, float]:
        refused = {"messages_refused": float(self._ingress.refused)}
        return {**self._codec.stats(), **self._egress.stats(), **refused}

    def _build(self, setup: Setup) -> None:
        if setup.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the coordinator speaks version {setup.version}, this process "
                f"{PROTOCOL_VERSION}; install one version of omni-core"
            )
        self._wishes.begin(setup.stages)
        for doc in setup.stages:
            context = self._stage_context(doc, setup)
            context.report("importing")
            factory = Ref(doc.factory).resolve()
            context.report("loading")
            scheduler = factory(context)
            self._nodes[doc.name] = StageNode(doc, scheduler, self, self._crash)
        self._share_cards(setup)
        gc.collect()
        gc.freeze()  # what a stage was built of stays; to look through it all takes 0.1 s each time
        for doc in setup.stages:
            self._nodes[doc.name].start()
            self._egress.post(COORDINATOR, Ready(process=self._name, stage=doc.name))

    def _share_cards(self, setup: Setup) -> None:
        """Let tensors stay on a card between processes that use it."""
        if place_of(self._name) not in setup.cards or self._home.segments is None:
            return
        from omni_core.relay import cuda_edges  # most processes have no use for it

        self._cards = cuda_edges.open_edges(
            *(self._home.segments, self._name, setup.cards, os.environ, self._home.open_card)
        )
        self._codec.use_cards(self._cards)

    def _stage_context(self, doc: StageDoc, setup: Setup) -> StageContext:
        def report(text: str) -> None:
            news = Progress(process=self._name, stage=doc.name, text=text)
            self._egress.post(COORDINATOR, news)

        return StageContext(
            stage=StageConfig(
                name=doc.name,
                factory=Ref(doc.factory),
                process=doc.process,
                tp_size=1 + len(doc.other_devices),
                memory_fraction=doc.memory_fraction,
                next=doc.next,
                stream_to=doc.stream_to,
                max_batch=doc.max_batch,
                max_wait_ms=doc.max_wait_ms,
                max_concurrency=doc.max_concurrency,
                options=doc.options,
            ),
            model_path=setup.model_path,
            device=doc.device,
            other_devices=doc.other_devices,
            dtype=doc.dtype,
            ar_engine=doc.ar_engine,
            compile=setup.compile,
            report=report,
            loads=partial(self._wishes.keep_loader, doc.name),
        )

    def _crash(self, stage: str, error: ErrorInfo) -> None:
        self._egress.post(COORDINATOR, Crash(process=self._name, stage=stage, error=error))
        self._stop_failed()

    def _stop_failed(self) -> None:
        self._exit_code = 1
        self._stopping = True
        self._wake()  # the loop may be on its way to wait for news

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            self._wake_write.send(b"\0")

    def _close(self) -> None:
        for node in self._nodes.values():
            node.close()
        if self._shm is not None:
            self._shm.close()  # a loop that waits for room leaves at once
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for node in self._nodes.values():
            node.join(max(0.0, deadline - time.monotonic()))
        if self._cards is not None:
            self._cards.close()
        self._egress.close()
        self._context.destroy(linger=_LINGER_MS)


def main(arguments: Sequence[str]) -> int:
    """The process NAME of the run in RUN_DIR, from its start to its exit code."""
    name, run_dir = arguments
    logging.basicConfig(format=LOG_FORMAT)
    return StageProcess(name, Home.of_run(Path(run_dir))).run()
