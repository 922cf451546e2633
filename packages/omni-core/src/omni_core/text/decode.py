"""The decode stage: the Thinker's tokens in, text for the client out.

Knows tokens, characters, stop strings, reasoning and calls. Runs no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import assert_never, cast

import msgspec

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
    Work,
)
from omni_core.text.calls import CallParser, Run
from omni_core.text.detokenize import Detokenizer, TokenBytes
from omni_core.text.logprobs import HeldLogprobs
from omni_core.text.payloads import ReplyStart, TokenChunk
from omni_core.text.reasoning import ContentOnly, ReasoningSplitter
from omni_core.text.stage import asked_sampling
from omni_core.types import (
    Channel,
    FinishReason,
    RequestParams,
    TextDelta,
    ToolCallDelta,
    Usage,
)


class Reply:
    """Text of one reply: tokens in as they are sampled, text out as soon as it is certain."""

    def __init__(
        self,
        tokens: TokenBytes,
        end_tokens: frozenset[int],
        params: RequestParams,
        *,
        reasons: bool,
        opened: bool,
        calls: bool = False,
    ) -> None:
        """`reasons`: text between think tags is reasoning, from the start if `opened`. `calls`:
        what the answer says may be calls of functions."""
        sampling = asked_sampling(params)
        self._end_tokens = end_tokens | set(sampling.stop_token_ids or ())
        self._detokenizer = Detokenizer(tokens)
        self._matcher = StopMatcher(sampling.stop or ())
        self._held = ""
        """Text that may yet turn out to begin a stop string."""
        self._shown = 0
        self._generated_characters = 0
        self._logprobs = HeldLogprobs(tokens)
        self._split = ReasoningSplitter(opened=opened) if reasons else ContentOnly()
        self._generated = ReasoningSplitter(opened=opened) if reasons else ContentOnly()
        """Is a few held characters ahead of `_split`: it only counts tokens."""
        self._calls = CallParser() if calls else None
        self.reasoning_tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(self, chunks: list[TokenChunk]) -> list[TextDelta | ToolCallDelta]:
        """Take tokens in order; the deltas, one for each run of a channel or of a call, list all of
        them but an end token."""
        deltas = [delta for chunk in chunks for delta in self._push(chunk)]
        return [_joined(list(run)) for _, run in groupby(deltas, key=_kind)]

    def _push(self, chunk: TokenChunk) -> list[TextDelta | ToolCallDelta]:
        token_ids = () if self._is_end(chunk) else (chunk["token"],)
        self.finish_reason = chunk["finish"]
        text = self._detokenizer.push(token_ids)
        if self.finish_reason is not None:
            text += self._detokenizer.flush()
        channel = self._count(text)
        if token_ids and "logprobs" in chunk:
            end = self._generated_characters + self._detokenizer.waiting
            self._logprobs.hold(chunk["token"], chunk["logprobs"], end=end, channel=channel)
        was_in_call = self._calls is not None and self._calls.in_call
        runs = self._split.push(self._certain(text))
        if self.finish_reason is not None:
            runs += self._split.flush()
        listed = TextDelta(text="", token_ids=token_ids, channel=self._split.channel)
        shown = [delta for channel, text in runs for delta in self._deltas(channel, text)]
        if self.finish_reason is not None:
            shown += self._rest(by_itself=self._is_end(chunk))
        return [*shown, listed, *self._released(was_in_call)]

    def _deltas(self, channel: Channel, text: str) -> list[TextDelta | ToolCallDelta]:
        """What a run of text is: more of its channel, or of calls."""
        if self._calls is None or channel == "reasoning":
            return [TextDelta(text=text, channel=channel)]
        return _as_deltas(self._calls.push(text))

    def _rest(self, *, by_itself: bool) -> list[TextDelta | ToolCallDelta]:
        """The reply has ended, or was cut if not `by_itself`: what was held as it might have been
        markup, and its reason. A call that the model ends early is a call: who asked for it has to
        read its arguments anyway."""
        if self._calls is None:
            return []
        is_cut = self._calls.in_arguments and not by_itself
        rest = _as_deltas(self._calls.flush(cut=self.finish_reason != "stop"))
        if self.finish_reason == "stop" and self._calls.calls and not is_cut:
            self.finish_reason = "tool_calls"
        return rest

    def _released(self, was_in_call: bool) -> list[TextDelta]:
        """Log-probabilities of tokens that are certainly content or reasoning. Those of a call are
        dropped, the one that closes it too."""
        if self._calls is None:
            return self._logprobs.release(self._shown)
        if was_in_call or self._calls.in_call:
            self._logprobs.release(self._shown)
            return []
        return self._logprobs.release(self._shown - self._calls.waiting)

    def _count(self, text: str) -> Channel:
        """Count one token and its `text`; the channel of the token: the tags are reasoning."""
        self._generated_characters += len(text)
        before = self._generated.channel
        self._generated.push(text)
        reasoning = "reasoning" in (before, self._generated.channel)
        self.reasoning_tokens += reasoning
        return "reasoning" if reasoning else "content"

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


def _as_deltas(runs: list[Run]) -> list[TextDelta | ToolCallDelta]:
    return [TextDelta(text=run) if isinstance(run, str) else run for run in runs]


def _kind(delta: TextDelta | ToolCallDelta) -> Channel | int:
    return delta.channel if isinstance(delta, TextDelta) else delta.index


def _joined(deltas: list[TextDelta | ToolCallDelta]) -> TextDelta | ToolCallDelta:
    """A run of one kind as one delta."""
    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    if not texts:
        pieces = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        arguments = "".join(piece.arguments for piece in pieces)
        return msgspec.structs.replace(pieces[0], arguments=arguments)
    return TextDelta(
        text="".join(delta.text for delta in texts),
        token_ids=tuple(token for delta in texts for token in delta.token_ids),
        channel=texts[0].channel,
        logprobs=tuple(token for delta in texts for token in delta.logprobs),
    )


def _says_something(delta: TextDelta | ToolCallDelta) -> bool:
    return isinstance(delta, ToolCallDelta) or bool(delta.text or delta.token_ids or delta.logprobs)


@dataclass(slots=True)
class _Stream:
    reply: Reply
    arrived: list[TokenChunk] = field(default_factory=list)
    ended: bool = False


class DecodeScheduler:
    """Detokenizes replies; tokens that wait in the inbox together leave as one delta."""

    def __init__(self, tokens: TokenBytes, end_tokens: frozenset[int], *, reasons: bool) -> None:
        """`reasons`: replies may hold reasoning between think tags."""
        self._tokens = tokens
        self._end_tokens = end_tokens
        self._reasons = reasons
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
                outbox.released(item.request_id)
            case Close():
                return False
            case _:
                assert_never(item)
        return True

    def _open(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        start = cast(ReplyStart, work.payload)
        try:
            reply = Reply(
                self._tokens,
                self._end_tokens,
                work.params,
                reasons=self._reasons and not start["raw"],
                opened=start["opened"],
                calls=start["calls"],
            )
        except OmniError as error:
            outbox.fail(work.request_id, error)
            return
        self._streams[work.request_id] = _Stream(reply)

    def _publish(self, request_id: str, stream: _Stream, outbox: Outbox) -> None:
        if stream.arrived:
            deltas = stream.reply.push(stream.arrived)
            stream.arrived = []
            for delta in deltas:
                if isinstance(delta, TextDelta):
                    self._text_tokens += len(delta.token_ids)
                if _says_something(delta):
                    outbox.emit(request_id, delta)
        if stream.ended:
            del self._streams[request_id]
            self._end(request_id, stream, outbox)

    def _end(self, request_id: str, stream: _Stream, outbox: Outbox) -> None:
        reason = stream.reply.finish_reason
        if reason is None:
            outbox.fail(request_id, StageError("the Thinker's tokens ended without a reason"))
            return
        usage = Usage(reasoning_tokens=stream.reply.reasoning_tokens)
        outbox.complete(request_id, finish_reason=reason, usage=usage)
