"""The composer stage: text to notes, and to the piano roll that the next stage plays.

Never holds a request: each is composed as it comes.
"""

from __future__ import annotations

import msgspec
import numpy as np

from omni_core.errors import ContextLengthError, OmniError
from omni_core.scheduler.base import Close, Inbox, Outbox, Work
from omni_core.specs import StageContext
from omni_core.types import FinishReason, IntArray, Message, TextDelta, TextPart, Usage
from omni_pianola.instrument import MAX_LETTERS, Instrument, name_of, read

NOTES = 128
VELOCITY = 96


class Composer:
    """The scheduler of the stage."""

    def __init__(self, instrument: Instrument) -> None:
        self._instrument = instrument
        self._requests = 0
        self._bytes_streamed = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Compose until `Close`; aborts find nothing to drop."""
        while not isinstance(item := inbox.get(), Close):
            if isinstance(item, Work):
                self._requests += 1
                self._compose(item, outbox)

    def stats(self) -> dict[str, float]:
        """Requests so far and the size of what was streamed."""
        return {
            "requests": self._requests,
            "waiting": 0,
            "running": 0,
            "bytes_streamed": self._bytes_streamed,
        }

    def _compose(self, work: Work, outbox: Outbox) -> None:
        rid, sampling = work.request_id, work.params.sampling
        try:
            letters = letters_of(work.payload["messages"])
        except OmniError as error:
            outbox.fail(rid, error)
            return
        outbox.send(rid, {})
        played = letters if sampling.max_tokens is None else letters[: sampling.max_tokens]
        for letter in played:
            note = self._instrument.note(letter)
            outbox.emit(rid, TextDelta(text=f"{name_of(note)} ", token_ids=(note,)))
            strip = self._strip(note)
            self._bytes_streamed += strip.nbytes
            outbox.stream(rid, strip)
        outbox.stream_done(rid)
        reason: FinishReason = "stop" if len(played) == len(letters) else "length"
        usage = Usage(prompt_tokens=len(letters), text_tokens=len(played))
        outbox.complete(rid, finish_reason=reason, usage=usage)

    def _strip(self, note: int) -> IntArray:
        """The roll while one note sounds: velocities, int64 (notes, frames)."""
        strip = np.zeros((NOTES, self._instrument.frames_per_letter), dtype=np.int64)
        strip[note] = VELOCITY
        return strip


def letters_of(messages: bytes) -> str:
    """The letters of the last message; a ContextLengthError if there are too many."""
    last = msgspec.msgpack.decode(messages, type=tuple[Message, ...])[-1]
    text = "".join(part.text for part in last.content if isinstance(part, TextPart))
    letters = "".join(filter(str.isalpha, text))
    if len(letters) > MAX_LETTERS:
        raise ContextLengthError(f"{len(letters)} letters; at most {MAX_LETTERS} fit the roll")
    return letters


def build(ctx: StageContext) -> Composer:
    """Factory of the stage."""
    return Composer(read(ctx.model_path))
