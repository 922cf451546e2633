"""The preprocessing stage: a conversation in, what is to be repeated out.

That is the last user turn, its texts and sounds in their order. Earlier turns and instructions are
not heeded: a parrot repeats. Knows no recogniser.
"""

from __future__ import annotations

from math import ceil
from typing import NoReturn

import numpy as np
from PIL import Image

from omni_core.encoder.media import MediaLoader
from omni_core.encoder.prompts import check_length, media_limits, prompt_scheduler
from omni_core.errors import MediaError, RequestError
from omni_core.media import FrameChoice, MediaLimits, sample_times
from omni_core.media.patience import Stop
from omni_core.scheduler.base import Scheduler
from omni_core.specs import StageContext
from omni_core.types import (
    FloatArray,
    IntArray,
    MediaOptions,
    MediaPart,
    Message,
    RequestParams,
    TextPart,
    Tool,
)
from omni_parrot.checkpoint import CONTEXT_LENGTH, HEARD_HZ, SOUND_TOKENS_PER_S
from omni_parrot.payloads import Piece, Turn
from omni_parrot.transcribe import task_of


def build(ctx: StageContext) -> Scheduler:
    """Factory of the stage."""
    return prompt_scheduler(ctx, Turns(media_limits(ctx)))


class Turns:
    """A `PromptMaker` whose prompts are turns to repeat."""

    def __init__(self, limits: MediaLimits) -> None:
        self._loader = MediaLoader(SpeechRules(), limits, remembered=0)

    def stats(self) -> dict[str, float]:
        """Nothing is counted here."""
        return {}

    def prompt(
        self,
        messages: tuple[Message, ...],
        params: RequestParams,
        tools: tuple[Tool, ...],
        stop: Stop,
    ) -> Turn:
        """See `PromptMaker`; RequestError if there is nothing to repeat."""
        task = task_of(messages)
        said = [message for message in messages if message.role == "user"][-1:]
        sounds = iter(self._sounds(tuple(said), params, stop))
        pieces: list[Piece] = []
        for part in (part for message in said for part in message.content):
            match part:
                case MediaPart():
                    pieces.append({"sound": next(sounds)})
                case TextPart(text=text) if text.strip():
                    pieces.append({"text": text.strip()})
                case _:
                    pass
        if not pieces:
            raise RequestError(
                "there is nothing to repeat: the last user message has no text and no sound",
                param="messages",
            )
        return _turn(pieces, params, task.language, task.prompt, translate=task.translate)

    def reading(self, text: str) -> Turn:
        """See `PromptMaker`."""
        return _turn([{"text": text}], RequestParams(modalities=("audio",)), None, "")

    def raw(self, prompt: str | IntArray, params: RequestParams) -> NoReturn:
        """See `PromptMaker`."""
        raise RequestError("a parrot completes nothing", param="prompt")

    def _sounds(
        self, said: tuple[Message, ...], params: RequestParams, stop: Stop
    ) -> list[FloatArray]:
        encoded = self._loader.fetch(said, params.media, stop)
        items = self._loader.decode(encoded, [None] * len(encoded), params.media, stop)
        return [item.sound for item in items if item.sound is not None]


def _turn(
    pieces: list[Piece],
    params: RequestParams,
    language: str | None,
    prompt: str,
    *,
    translate: bool = False,
) -> Turn:
    check_length(sum(map(tokens, pieces)), params, CONTEXT_LENGTH)
    return Turn(pieces=pieces, language=language, prompt=prompt, translate=translate)


def tokens(piece: Piece) -> int:
    """Words of a text, frames of a sound."""
    if "sound" in piece:
        return ceil(len(piece["sound"]) / HEARD_HZ * SOUND_TOKENS_PER_S)
    return len(piece["text"].split())


class SpeechRules:
    """`MediaRules` of a model that has ears and no eyes."""

    sample_rate = HEARD_HZ
    sampling = (0.0, 0)
    choose_frames: FrameChoice = staticmethod(sample_times)

    def image_grid(self, image: Image.Image, options: MediaOptions) -> list[int]:
        """See `MediaRules`."""
        raise MediaError("a parrot hears and cannot see; send text or sound")

    def video_grid(self, shape: tuple[int, ...], options: MediaOptions) -> list[int]:
        """See `MediaRules`."""
        raise MediaError("a parrot hears and cannot see; send text or sound")

    def check_sound(self, samples: FloatArray) -> None:
        """See `MediaRules`."""
        if not np.isfinite(samples).all():
            raise MediaError("the sound has samples that are no numbers")
