"""The loop of stages that turn a stream of codec frames into a stream of audio.

Knows order, cadence and audio events. Knows nothing of codecs: a `StreamingVocoder` does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, assert_never

import numpy as np

from omni_core.errors import StageError, as_omni_error
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Outbox, Work
from omni_core.types import AudioDelta, FloatArray, IntArray, Payload, RequestParams

_CODE_DIMENSIONS: Final = 2


class StreamingVocoder(Protocol):
    """Stateful incremental decoder: any chunking of a reply gives the samples of the whole."""

    sample_rate: int

    def open(self, params: RequestParams, payload: Payload) -> Any:
        """Fresh state for one reply."""

    def push(self, states: list[Any], codes: list[IntArray]) -> list[FloatArray]:
        """Advance each state by its int64 (groups, frames) codes; returns the samples that are now
        final, float32 (n,) each, possibly empty."""

    def flush(self, state: Any) -> FloatArray:
        """Samples still owed once the codes have ended; empty for most codecs."""

    def close(self, state: Any) -> None:
        """Free the state; called once, after `flush` or on abort."""


@dataclass(slots=True)
class _Reply:
    state: Any
    codes: deque[IntArray] = field(default_factory=deque)
    ended: bool = False
    frames: int = 0


class StreamingScheduler:
    """Feeds arriving frames to a vocoder, all replies with frames waiting in one push.

    At most `max_frames_per_push` frames of one reply go into a push, so that audio leaves early
    and no reply holds up the others.
    """

    def __init__(self, vocoder: StreamingVocoder, *, max_frames_per_push: int = 4) -> None:
        self._vocoder = vocoder
        self._max_frames = max_frames_per_push
        self._replies: dict[str, _Reply] = {}
        self._requests = 0
        self._frames = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Receive, push, publish until `Close`."""
        while self._receive(inbox, outbox):
            ready = {rid: reply for rid, reply in self._replies.items() if reply.codes}
            if ready:
                self._push(ready, outbox)
            for rid in [r for r, y in self._replies.items() if y.ended and not y.codes]:
                self._finish(rid, outbox)
        for rid in list(self._replies):
            self._drop(rid)

    def stats(self) -> dict[str, float]:
        """Replies entered, frames decoded, and replies held now."""
        waiting = sum(1 for reply in list(self._replies.values()) if reply.codes)
        return {
            "requests": self._requests,
            "frames": self._frames,
            "waiting": waiting,
            "running": len(self._replies),
        }

    def _receive(self, inbox: Inbox, outbox: Outbox) -> bool:
        """Take what has arrived; wait only when nothing is left to decode. False to leave."""
        idle = not any(reply.codes for reply in self._replies.values())
        for item in inbox.drain(block=idle):
            match item:
                case Work():
                    self._open(item, outbox)
                case Chunk():
                    self._take_in(item, outbox)
                case ChunksDone():
                    if reply := self._replies.get(item.request_id):
                        reply.ended = True
                case Abort():
                    self._drop(item.request_id)
                case Close():
                    return False
                case _:
                    assert_never(item)
        return True

    def _open(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        try:
            state = self._vocoder.open(work.params, work.payload)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            outbox.fail(work.request_id, as_omni_error(exc))
            return
        self._replies[work.request_id] = _Reply(state)

    def _take_in(self, chunk: Chunk, outbox: Outbox) -> None:
        reply, codes = self._replies.get(chunk.request_id), chunk.data
        if reply is None:
            return
        if not isinstance(codes, np.ndarray) or codes.ndim != _CODE_DIMENSIONS:
            self._drop(chunk.request_id)
            error = StageError(f"{chunk.source!r} must stream numpy int64 (groups, frames) codes")
            outbox.fail(chunk.request_id, error)
        elif codes.shape[1]:
            reply.codes.append(codes)

    def _push(self, ready: dict[str, _Reply], outbox: Outbox) -> None:
        codes = [_take(reply.codes, self._max_frames) for reply in ready.values()]
        try:
            samples = self._vocoder.push([reply.state for reply in ready.values()], codes)
        except Exception as exc:  # noqa: BLE001 - request edge: a failed push ends its own replies
            for rid in ready:
                self._drop(rid)
                outbox.fail(rid, as_omni_error(exc))
            return
        for (rid, reply), taken, audio in zip(ready.items(), codes, samples, strict=True):
            reply.frames += taken.shape[1]
            self._frames += taken.shape[1]
            self._emit(rid, audio, outbox)

    def _finish(self, request_id: str, outbox: Outbox) -> None:
        try:
            tail = self._vocoder.flush(self._replies[request_id].state)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad reply fails alone
            self._drop(request_id)
            outbox.fail(request_id, as_omni_error(exc))
            return
        self._emit(request_id, tail, outbox)
        self._drop(request_id)
        outbox.complete(request_id)

    def _emit(self, request_id: str, samples: FloatArray, outbox: Outbox) -> None:
        if samples.size:
            rate = self._vocoder.sample_rate
            outbox.emit(request_id, AudioDelta(samples=samples, sample_rate=rate))

    def _drop(self, request_id: str) -> None:
        reply = self._replies.pop(request_id, None)
        if reply is not None:
            self._vocoder.close(reply.state)


def _take(codes: deque[IntArray], limit: int) -> IntArray:
    """Remove up to `limit` frames from the front, splitting a chunk where it must."""
    taken: list[IntArray] = []
    room = limit
    while codes and room:
        head = codes.popleft()
        if head.shape[1] > room:
            codes.appendleft(head[:, room:])
            head = head[:, :room]
        taken.append(head)
        room -= head.shape[1]
    return np.concatenate(taken, axis=1)
