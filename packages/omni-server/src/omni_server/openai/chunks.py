"""A streamed chat reply: events of the pipeline to `ChatCompletionChunk`s of the openai package.

Knows the order OpenAI's clients rely on: role, then text, calls and audio, the audio's expiry, one
finish reason, usage. What is said once (an audio's id, its rate, a call's id and name) is sent
once, because clients add up the strings and numbers of all deltas. Extensions: `sample_rate` beside
audio data, `finish_reason` beside its expiry, `timeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from omni_core.types import (
    AudioDelta,
    CodecDelta,
    Event,
    Finished,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from omni_server.audio import PcmPieces
from omni_server.openai.call import ChatCall
from omni_server.openai.logprobs import logprobs_object
from omni_server.openai.reply import Json, ReplyIds, timeline_object, usage_object

Remember = Callable[[str, str], int]
"""(audio id, transcript) -> Unix time at which both are forgotten."""


class ChunkWriter:
    """Turns the events of one choice into chunks, in order."""

    def __init__(self, call: ChatCall, ids: ReplyIds, index: int = 0) -> None:
        self._call = call
        self._ids = ids
        self._index = index
        self._pcm = PcmPieces()
        self._transcript: list[str] = []
        self._has_named_audio = self._has_sound = False

    def open(self) -> Json:
        """The chunk that begins the choice. Those of all choices come first, by index: clients add
        up choices in a list, in the order in which they first hear of them."""
        no_text = self._call.wants_audio or self._call.only_calls
        return self._delta({"role": "assistant", "content": None if no_text else ""})

    def hear(self, event: Event) -> Iterator[Json]:
        """The chunks that one event makes at once."""
        match event:
            case TextDelta(text=text, channel="reasoning"):
                if text:
                    yield self._delta({"reasoning_content": text})
            case TextDelta(text=text, logprobs=tokens) if text or tokens:
                yield self._text(text, tokens)
            case AudioDelta(samples=samples, sample_rate=rate) if samples.size:
                first = {} if self._has_sound else {"sample_rate": rate}
                self._has_sound = True
                if data := self._pcm.push(samples):
                    yield self._audio({"data": data, **first})
            case ToolCallDelta():
                yield self._delta({"tool_calls": [_tool_call(event)]})
            case TextDelta() | AudioDelta() | CodecDelta() | Finished():
                pass

    def close(self, finished: Finished, remember: Remember) -> Iterator[Json]:
        """The chunks that end the choice."""
        if self._has_sound:
            if rest := self._pcm.flush():
                yield self._audio({"data": rest})
            expires_at = remember(self._ids.audio_id_of(self._index), "".join(self._transcript))
            reason = finished.audio_finish_reason
            yield self._audio({"expires_at": expires_at, "finish_reason": reason})
        last = self._delta({}, finished.finish_reason)
        if self._call.include_timeline:
            last["timeline"] = timeline_object(finished.timeline)
        yield last

    def usage(self, usage: Usage) -> Iterator[Json]:
        """The last chunk of the whole reply, if it is wanted."""
        if self._call.include_usage:
            yield {**self._chunk([]), "usage": usage_object(usage)}

    def _text(self, text: str, tokens: tuple[TokenLogprob, ...]) -> Json:
        """`content`, or the transcript of the audio that comes with it."""
        if self._call.wants_audio:
            self._transcript.append(text)
            chunk = self._audio({"transcript": text})
        else:
            chunk = self._delta({"content": text})
        if tokens:
            chunk["choices"][0]["logprobs"] = logprobs_object(tokens)
        return chunk

    def _audio(self, audio: Json) -> Json:
        if not self._has_named_audio:
            self._has_named_audio = True
            audio = {"id": self._ids.audio_id_of(self._index), **audio}
        return self._delta({"audio": audio})

    def _delta(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": self._index, "delta": delta, "logprobs": None}
        return self._chunk([{**choice, "finish_reason": finish_reason}])

    def _chunk(self, choices: list[Json]) -> Json:
        chunk: Json = {
            "id": self._ids.completion_id,
            "object": "chat.completion.chunk",
            "created": self._ids.created,
            "model": self._ids.model,
            "choices": choices,
            "system_fingerprint": self._ids.fingerprint,
        }
        if self._call.include_usage:
            chunk["usage"] = None
        return chunk


def _tool_call(event: ToolCallDelta) -> Json:
    """`ChoiceDeltaToolCall`: a call's first has its id and name, the others only arguments."""
    if event.name is None:
        return {"index": event.index, "function": {"arguments": event.arguments}}
    return {
        "index": event.index,
        "id": event.call_id,
        "type": "function",
        "function": {"name": event.name, "arguments": event.arguments},
    }
