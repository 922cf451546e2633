"""The decode stage: the Thinker's tokens in, text for the client out.

Knows tokens, characters and stop strings. Runs no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from omni_core.engine.stop import StopMatcher
from omni_core.errors import OmniError, StageError
from omni_core.scheduler.base import (
    Abort,
    Chunk,
    ChunksDone,
    Close,
    Inbox,
    InboxItem,
    Outbox,
    Scheduler,
    Work,
)
from omni_core.specs import StageContext
from omni_core.types import FinishReason, RequestParams, TextDelta
from omni_qwen3.defaults import eos_token_ids
from omni_qwen3.detokenize import Detokenizer, TokenBytes
from omni_qwen3.payloads import TokenChunk


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler; needs the tokenizer and the end tokens of the checkpoint."""
    ctx.report("loading tokenizer")
    return DecodeScheduler(TokenBytes(ctx.model_path), eos_token_ids(ctx.model_path))


class Reply:
    """Text of one reply: tokens in as they are sampled, text out as soon as it is certain."""

    def __init__(
        self, tokens: TokenBytes, end_tokens: frozenset[int], params: RequestParams
    ) -> None:
        sampling = params.sampling_for("thinker").over(params.sampling)
        self._end_tokens = end_tokens | set(sampling.stop_token_ids or ())
        self._detokenizer = Detokenizer(tokens)
        self._matcher = StopMatcher(sampling.stop or ())
        self._held = ""
        """Text that may yet turn out to begin a stop string."""
        self._shown = 0
        self.finish_reason: FinishReason | None = None

    def push(self, chunks: list[TokenChunk]) -> TextDelta:
        """Take tokens in order; the delta lists all of them but an end token."""
        token_ids = tuple(chunk["token"] for chunk in chunks if not self._is_end(chunk))
        self.finish_reason = chunks[-1]["finish"]
        text = self._detokenizer.push(token_ids)
        if self.finish_reason is not None:
            text += self._detokenizer.flush()
        return TextDelta(text=self._certain(text), token_ids=token_ids)

    def _is_end(self, chunk: TokenChunk) -> bool:
        return chunk["finish"] == "stop" and chunk["token"] in self._end_tokens

    def _certain(self, text: str) -> str:
        """What may be shown of the text held so far and of the new `text`."""
        state = self._matcher.push(text)
        text = self._held + text
        complete = self.finish_reason is not None and not state.stopped
        count = len(text) if complete else state.safe - self._shown
        self._shown += count
        self._held = "" if state.stopped else text[count:]
        return text[:count]


@dataclass(slots=True)
class _Stream:
    reply: Reply
    arrived: list[TokenChunk] = field(default_factory=list)
    ended: bool = False


class DecodeScheduler:
    """Detokenizes replies; tokens that wait in the inbox together leave as one delta."""

    def __init__(self, tokens: TokenBytes, end_tokens: frozenset[int]) -> None:
        self._tokens = tokens
        self._end_tokens = end_tokens
        self._streams: dict[str, _Stream] = {}
        self._requests = 0
        self._text_tokens = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Receive, publish until `Close`; nothing is held afterwards."""
        while all(self._receive(item, outbox) for item in inbox.drain(block=True)):
            for request_id, stream in list(self._streams.items()):
                self._publish(request_id, stream, outbox)
        self._streams.clear()

    def stats(self) -> dict[str, float]:
        """Replies entered, text tokens seen, and replies held now."""
        return {
            "requests": self._requests,
            "text_tokens": self._text_tokens,
            "waiting": 0,
            "running": len(self._streams),
        }

    def _receive(self, item: InboxItem, outbox: Outbox) -> bool:
        """Sort one item to its reply; False when the stage is to close. Items of requests that are
        not here (aborted, or over) are late and mean nothing."""
        match item:
            case Work():
                self._open(item, outbox)
            case Chunk():
                if item.request_id in self._streams:
                    self._streams[item.request_id].arrived.append(item.data)
            case ChunksDone():
                if item.request_id in self._streams:
                    self._streams[item.request_id].ended = True
            case Abort():
                self._streams.pop(item.request_id, None)
            case Close():
                return False
            case _:
                assert_never(item)
        return True

    def _open(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        try:
            reply = Reply(self._tokens, self._end_tokens, work.params)
        except OmniError as error:
            outbox.fail(work.request_id, error)
            return
        self._streams[work.request_id] = _Stream(reply)

    def _publish(self, request_id: str, stream: _Stream, outbox: Outbox) -> None:
        if stream.arrived:
            delta = stream.reply.push(stream.arrived)
            stream.arrived = []
            self._text_tokens += len(delta.token_ids)
            if delta.text or delta.token_ids:
                outbox.emit(request_id, delta)
        if stream.ended:
            del self._streams[request_id]
            self._end(request_id, stream, outbox)

    def _end(self, request_id: str, stream: _Stream, outbox: Outbox) -> None:
        reason = stream.reply.finish_reason
        if reason is None:
            outbox.fail(request_id, StageError("the Thinker's tokens ended without a reason"))
            return
        outbox.complete(request_id, finish_reason=reason)
