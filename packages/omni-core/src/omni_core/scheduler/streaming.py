"""The loop of stages that turn a stream of codec frames into a stream of audio.

Knows order, slots and audio events; when a chunk is due, its `Cadence` knows. Knows nothing of
codecs: a `StreamingVocoder` does.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, assert_never

import numpy as np

from omni_core.errors import StageError, as_omni_error
from omni_core.scheduler.base import (
    Abort,
    Chunk,
    ChunksDone,
    Close,
    Inbox,
    InboxItem,
    Outbox,
    Work,
)
from omni_core.scheduler.cadence import Cadence, Pace
from omni_core.types import AudioDelta, FloatArray, IntArray, Payload, RequestParams

_CODE_DIMENSIONS: Final = 2


class StreamingVocoder(Protocol):
    """Stateful incremental decoder: any chunking of a reply gives the samples of the whole."""

    sample_rate: int
    max_replies: int | None
    """States that may be open at once; further replies wait. None is any number."""

    def open(self, params: RequestParams, payload: Payload) -> Any:
        """Fresh state for one reply."""

    def push(self, states: list[Any], codes: list[IntArray]) -> list[FloatArray]:
        """Advance each state by its int64 (groups, frames) codes; returns the samples that are now
        final, float32 (n,) each, possibly empty. An error leaves every state as it was: the
        replies are then pushed one by one, so that only the cause of it fails."""

    def flush(self, state: Any) -> FloatArray:
        """Samples still owed once the codes have ended; empty for most codecs."""

    def close(self, state: Any) -> None:
        """Free the state; called once, after `flush` or on abort."""


@dataclass(slots=True)
class _Reply:
    work: Work
    pace: Pace
    state: Any = None
    is_open: bool = False
    codes: deque[IntArray] = field(default_factory=deque)
    frames: int = 0
    """How many of them wait."""
    ended: bool = False

    def take(self, limit: int) -> IntArray:
        """Remove `limit` frames from the front, splitting a chunk where it must."""
        taken: list[IntArray] = []
        room = limit
        while room:
            head = self.codes.popleft()
            if head.shape[1] > room:
                self.codes.appendleft(head[:, room:])
                head = head[:, :room]
            taken.append(head)
            room -= head.shape[1]
        self.frames -= limit
        return np.concatenate(taken, axis=1)


_Row: TypeAlias = tuple[str, _Reply, IntArray]


class StreamingScheduler:
    """Feeds arriving frames to a vocoder: each reply by its own cadence, what is due together.

    Replies that have no audio yet come first and by themselves, then those whose listeners run out
    first. Replies beyond the vocoder's `max_replies` wait in order of arrival; their frames are
    kept.
    """

    def __init__(
        self,
        vocoder: StreamingVocoder,
        *,
        cadence: Cadence | None = None,
        push_frames: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        more_stats: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """A push has at most `push_frames` over all its replies, or one reply's chunk: what arrives
        meanwhile may be more urgent than the rest. `more_stats` gives the numbers of whatever the
        vocoder uses, which `stats` adds."""
        self._vocoder = vocoder
        self._cadence = cadence or Cadence()
        self._push_frames = push_frames
        self._clock = clock
        self._more_stats = more_stats
        self._replies: dict[str, _Reply] = {}
        self._open_count = 0
        self._requests = self._frames = self._pushes = self._underruns = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Receive, open, push, finish until `Close`."""
        while self._receive(inbox, outbox):
            self._open_waiting(outbox)
            if due := self._due():
                self._pushes += 1
                self._push([(rid, self._replies[rid], codes) for rid, codes in due], outbox)
            self._finish_ended(outbox)
        for rid in list(self._replies):
            self._drop(rid)

    def stats(self) -> dict[str, float]:
        """Replies entered, frames and pushes decoded, how often a listener ran out of audio, and
        the replies held now: all, and of these the ones without a slot."""
        return {
            "requests": self._requests,
            "frames": self._frames,
            "pushes": self._pushes,
            "underruns": self._underruns,
            "waiting": len(self._replies) - self._open_count,
            "running": len(self._replies),
            **self._more_stats(),
        }

    def _receive(self, inbox: Inbox, outbox: Outbox) -> bool:
        """Take what has arrived, waiting until a chunk is due. False to leave."""
        for item in self._arrived(inbox):
            match item:
                case Work():
                    self._requests += 1
                    self._replies[item.request_id] = _Reply(item, Pace(self._cadence))
                case Chunk():
                    self._take_in(item, outbox)
                case ChunksDone():
                    if reply := self._replies.get(item.request_id):
                        reply.ended = True
                case Abort():
                    self._drop(item.request_id)
                    outbox.released(item.request_id)
                case Close():
                    return False
                case _:
                    assert_never(item)
        return True

    def _arrived(self, inbox: Inbox) -> Sequence[InboxItem]:
        now_s, wake_s = self._clock(), None
        for reply in self._replies.values():
            if not reply.is_open and self._has_slot():
                return inbox.drain(block=False)
            if not reply.is_open or not reply.frames:
                continue
            if reply.pace.due(reply.frames, ended=reply.ended, now_s=now_s):
                return inbox.drain(block=False)
            if reply.pace.wake_s is not None:
                wake_s = min(wake_s or reply.pace.wake_s, reply.pace.wake_s)
        if wake_s is None:
            return inbox.drain(block=True)
        first = inbox.get(timeout_s=max(0.0, wake_s - now_s))
        return [] if first is None else [first, *inbox.drain(block=False)]

    def _open_waiting(self, outbox: Outbox) -> None:
        for rid, reply in list(self._replies.items()):
            if reply.is_open or not self._has_slot():
                continue
            try:
                reply.state = self._vocoder.open(reply.work.params, reply.work.payload)
            except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
                self._fail(rid, exc, outbox)
                continue
            reply.is_open = True
            self._open_count += 1

    def _has_slot(self) -> bool:
        limit = self._vocoder.max_replies
        return limit is None or self._open_count < limit

    def _take_in(self, chunk: Chunk, outbox: Outbox) -> None:
        reply, codes = self._replies.get(chunk.request_id), chunk.data
        if reply is None:
            return
        if not isinstance(codes, np.ndarray) or codes.ndim != _CODE_DIMENSIONS:
            error = StageError(f"{chunk.source!r} must stream numpy int64 (groups, frames) codes")
            self._fail(chunk.request_id, error, outbox)
        elif codes.shape[1]:
            reply.codes.append(codes)
            reply.frames += codes.shape[1]

    def _due(self) -> list[tuple[str, IntArray]]:
        """The chunks of one push, the most urgent first."""
        now_s, room, begins = self._clock(), self._push_frames or math.inf, False
        due: list[tuple[str, IntArray]] = []
        waiting = [(rid, r) for rid, r in self._replies.items() if r.is_open and r.frames]
        for rid, reply in sorted(waiting, key=lambda row: row[1].pace.audio_until_s or 0.0):
            count = reply.pace.due(reply.frames, ended=reply.ended, now_s=now_s)
            if not count:
                continue
            silent = reply.pace.audio_until_s is None
            if due and (count > room or begins != silent):
                break
            begins, room = silent, room - count
            due.append((rid, reply.take(count)))
        return due

    def _push(self, rows: Sequence[_Row], outbox: Outbox) -> None:
        try:
            wavs = self._vocoder.push([reply.state for _, reply, _ in rows], [c for *_, c in rows])
        except Exception as exc:  # noqa: BLE001 - request edge: the cause of an error fails alone
            if len(rows) == 1:
                self._fail(rows[0][0], exc, outbox)
                return
            for row in rows:
                self._push([row], outbox)
            return
        now_s = self._clock()
        for (rid, reply, codes), wav in zip(rows, wavs, strict=True):
            frames, audio_s = codes.shape[1], wav.size / self._vocoder.sample_rate
            self._frames += frames
            self._underruns += reply.pace.decoded(frames, audio_s=audio_s, now_s=now_s)
            self._emit(rid, wav, outbox)

    def _finish_ended(self, outbox: Outbox) -> None:
        for rid, reply in list(self._replies.items()):
            if not reply.ended or reply.frames or not reply.is_open:
                continue
            try:
                tail = self._vocoder.flush(reply.state)
            except Exception as exc:  # noqa: BLE001 - request edge: one bad reply fails alone
                self._fail(rid, exc, outbox)
                continue
            self._emit(rid, tail, outbox)
            self._drop(rid)
            outbox.complete(rid)

    def _emit(self, request_id: str, samples: FloatArray, outbox: Outbox) -> None:
        if samples.size:
            rate = self._vocoder.sample_rate
            outbox.emit(request_id, AudioDelta(samples=samples, sample_rate=rate))

    def _fail(self, request_id: str, error: Exception, outbox: Outbox) -> None:
        self._drop(request_id)
        outbox.fail(request_id, as_omni_error(error))

    def _drop(self, request_id: str) -> None:
        reply = self._replies.pop(request_id, None)
        if reply is not None and reply.is_open:
            self._open_count -= 1
            self._vocoder.close(reply.state)
