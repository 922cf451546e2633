"""The loop of a stage that speaks: utterances in, several of each request under way at once, audio
out in the order of the text.

Knows requests, the engine and order. Knows nothing of tokens, rows or networks: a `Director` makes
the engine's requests, the VAE the sound.

Only the utterance that is heard next is decoded; the latents of those after it wait. Who is heard
next enters the engine at once, others while it has room and nobody waits for a first sound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, assert_never

import torch

from omni_core.engine.base import Engine, RequestFailedError, StepOutput
from omni_core.errors import OmniError, as_omni_error
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
from omni_core.types import AudioDelta, Usage
from omni_ming.payloads import Utterance
from omni_ming.silence import SilenceTrim
from omni_ming.talker.script import Director, Line, Script
from omni_ming.vae.stream import Push, Slot, StreamingVae
from omni_ming.voices import Voice

PUSH_PATCHES: Final = 8
"""Of one utterance in one call of the VAE: the others of the call, and what arrives meanwhile, wait
no longer than for these."""


@dataclass(slots=True, eq=False)
class _Spoken:
    """An utterance that the engine makes, or has made, and that is not heard yet."""

    request_id: str
    line: Line
    slot: Slot
    trim: SilenceTrim
    patches: deque[torch.Tensor] = field(default_factory=deque)
    """(patch, latent_dim) each, not decoded yet."""
    ended: bool = False

    def take(self) -> Push:
        """What to decode now."""
        count = min(len(self.patches), PUSH_PATCHES)
        taken = [self.patches.popleft() for _ in range(count)]
        return Push(self.slot, torch.cat(taken), last=self.ended and not self.patches)


@dataclass(slots=True, eq=False)
class _Speech:
    """A request."""

    work: Work
    voice: Voice | None
    script: Script
    waiting: deque[Utterance] = field(default_factory=deque)
    lines: deque[_Spoken] = field(default_factory=deque)
    """Those under way, in the order of the text: made, or made and not heard yet."""
    begun: int = 0
    """Utterances that have entered the engine."""
    patches: int = 0
    sounds: bool = False
    """Some of it has been decoded."""
    complete: bool = False
    """All utterances are known."""
    cut: bool = False


class SpeechScheduler:
    """Drives an engine and a VAE, until `Close`.

    What one request raises fails that request; what a step of either raises ends the loop.
    """

    def __init__(
        self,
        engine: Engine,
        director: Director,
        vae: StreamingVae,
        *,
        script: Callable[[], Script],
        at_once: int,
        more_stats: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """At most `at_once` utterances of a request are under way at a time. `more_stats` are
        numbers of whatever the runner uses; `stats` adds them to its own."""
        self._engine = engine
        self._director = director
        self._vae = vae
        self._script = script
        self._at_once = at_once
        self._more_stats = more_stats
        self._speeches: dict[str, _Speech] = {}
        self._speaking: dict[str, tuple[_Speech, _Spoken]] = {}
        """By the engine's request ids."""
        self._requests = self._utterances = self._pushes = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """The main loop; sleeps only while there is nothing to do."""
        with self._engine.session():
            while self._receive(inbox, outbox):
                self._begin(outbox)
                if self._engine.runnable():
                    self._step(outbox)
                self._sound(outbox)
                self._end(outbox)
            for request_id in list(self._speeches):
                self._drop(request_id)

    def stats(self) -> dict[str, float]:
        """Engine occupancy beside the stage's own counters: requests and utterances entered, chunks
        of utterances decoded, and the batches that this took."""
        return {
            **asdict(self._engine.stats()),
            **self._more_stats(),
            "requests": self._requests,
            "running": len(self._speeches),
            "utterances": self._utterances,
            "vae_chunks": self._pushes,
            "vae_batches": self._vae.steps,
        }

    def _receive(self, inbox: Inbox, outbox: Outbox) -> bool:
        """Take what has come, waiting while there is nothing to do. False to leave."""
        startable = next(self._startable(), None) is not None
        idle = not (startable or self._engine.runnable() or any(self._audible()))
        timeout_s = self._engine.wakes_in_s() if idle else None
        items = inbox.drain(block=idle, timeout_s=timeout_s)
        return all(self._take(item, outbox) for item in items)

    def _take(self, item: InboxItem, outbox: Outbox) -> bool:
        match item:
            case Work():
                self._admit(item, outbox)
            case Chunk():
                self._hear(item.request_id, outbox, lambda script: script.push(item.data))
            case ChunksDone():
                self._hear(item.request_id, outbox, lambda script: script.flush())
                if (speech := self._speeches.get(item.request_id)) is not None:
                    speech.complete = True
            case Abort():
                self._drop(item.request_id)
                outbox.released(item.request_id)
            case Close():
                return False
            case _:
                assert_never(item)
        return True

    def _admit(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        try:
            voice = self._director.voice(work)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            outbox.fail(work.request_id, as_omni_error(exc))
            return
        self._speeches[work.request_id] = _Speech(work, voice, self._script())

    def _hear(
        self, request_id: str, outbox: Outbox, read: Callable[[Script], list[Utterance]]
    ) -> None:
        speech = self._speeches.get(request_id)
        if speech is None:
            return
        try:
            speech.waiting += read(speech.script)
        except Exception as exc:  # noqa: BLE001 - request edge: a bad chunk fails its request
            self._fail(request_id, as_omni_error(exc), outbox)

    def _begin(self, outbox: Outbox) -> None:
        """Hand utterances to the engine, first those that are heard next."""
        while (speech := next(self._startable(), None)) is not None:
            self._add(speech, outbox)

    def _startable(self) -> Iterator[_Speech]:
        """Who may hand an utterance to the engine now."""
        speeches = self._speeches.values()
        yield from (speech for speech in speeches if speech.waiting and not speech.lines)
        if any(speech.lines and not speech.sounds for speech in speeches):
            return  # what is made ahead makes the steps of those longer who wait for a first sound
        if len(self._speaking) < self._engine.max_running:
            yield from (s for s in speeches if s.waiting and len(s.lines) < self._at_once)

    def _add(self, speech: _Speech, outbox: Outbox) -> None:
        work, text = speech.work, speech.waiting.popleft()["text"]
        try:
            line = self._director.line(
                work.request_id, work.params, speech.voice, text, speech.begun
            )
            self._engine.add(line.request)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad text fails its request
            self._fail(work.request_id, as_omni_error(exc), outbox)
            return
        trim = SilenceTrim(self._vae.sample_rate)
        spoken = _Spoken(line.request.request_id, line, self._vae.open(), trim)
        speech.begun += 1
        self._utterances += 1
        speech.lines.append(spoken)
        self._speaking[spoken.request_id] = (speech, spoken)

    def _step(self, outbox: Outbox) -> None:
        try:
            outputs = self._engine.step()
        except RequestFailedError as failed:
            speech, _ = self._speaking[failed.request_id]
            self._fail(speech.work.request_id, failed.error, outbox)
            return
        for output in outputs:
            self._keep(output)

    def _keep(self, output: StepOutput) -> None:
        speech, spoken = self._speaking[output.request_id]
        spoken.patches.append(output.data)
        speech.patches += 1
        if output.finish_reason is not None:
            spoken.ended = True
            made = output.index + 1
            speech.cut |= output.finish_reason == "length" and made < spoken.line.whole_after
            del self._speaking[output.request_id]

    def _audible(self) -> Iterator[tuple[_Speech, _Spoken]]:
        """Utterances that are heard next and have latents."""
        for speech in self._speeches.values():
            if speech.lines and speech.lines[0].patches:
                yield speech, speech.lines[0]

    def _sound(self, outbox: Outbox) -> None:
        """Decode what is heard next, and say it."""
        due = [(speech, spoken, spoken.take()) for speech, spoken in self._audible()]
        if not due:
            return
        self._pushes += len(due)
        wavs = self._vae.push([push for _, _, push in due])
        for (speech, spoken, push), wav in zip(due, wavs, strict=True):
            speech.sounds = True
            heard = spoken.trim.push(wav, last=push.last)
            if push.last:
                speech.lines.popleft()
            if heard.size:
                rate = self._vae.sample_rate
                outbox.emit(speech.work.request_id, AudioDelta(samples=heard, sample_rate=rate))

    def _end(self, outbox: Outbox) -> None:
        """Requests of which everything is said."""
        for request_id, speech in list(self._speeches.items()):
            if speech.complete and not speech.waiting and not speech.lines:
                del self._speeches[request_id]
                outbox.complete(
                    request_id,
                    finish_reason="length" if speech.cut else "stop",
                    usage=Usage(audio_tokens=speech.patches),
                )

    def _fail(self, request_id: str, error: OmniError, outbox: Outbox) -> None:
        self._drop(request_id)
        outbox.fail(request_id, error)

    def _drop(self, request_id: str) -> None:
        speech = self._speeches.pop(request_id, None)
        if speech is None:
            return
        speech.waiting.clear()
        for spoken in speech.lines:
            if not spoken.ended:
                self._engine.abort(spoken.request_id)
                del self._speaking[spoken.request_id]
