"""The preprocessing stage: messages in, token ids with positions and media arrays out.

Knows the order of the steps; each step has a module of its own. Everything a request can get wrong
about its prompt is found here, before a model runs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from omni_core.encoder.media import Item, MediaLoader, require_wanted
from omni_core.encoder.options import DEFAULT_ENTRIES
from omni_core.encoder.prompts import (
    DECODING_AT_ONCE,
    check_length,
    check_raw,
    media_limits,
    prompt_scheduler,
    remembered_items,
)
from omni_core.errors import RequestError
from omni_core.media import MediaLimits
from omni_core.media.patience import Stop, never
from omni_core.scheduler.base import Scheduler
from omni_core.specs import StageContext
from omni_core.types import (
    IntArray,
    MediaPart,
    Message,
    Payload,
    RequestParams,
    Tool,
    VoiceSample,
)
from omni_ming.payloads import Prompt
from omni_ming.preprocess.audio import AudioFeatures
from omni_ming.preprocess.chat import ChatEncoder, MediaSize
from omni_ming.preprocess.inputs import EncoderInputs
from omni_ming.preprocess.pieces import Line, Piece, positions, token_ids
from omni_ming.preprocess.rules import Rules
from omni_ming.preprocess.settings import load_settings
from omni_ming.preprocess.tokenizer import TextTokenizer
from omni_ming.preprocess.voice import VoiceRecordings
from omni_ming.speech_text.front_end import has_speech

LONGEST_READING = 20_000
"""Characters of a text to read aloud, which is about an hour of speech."""


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler; `options` of the stage are fields of `MediaLimits`, and how many items
    it remembers."""
    ctx.report("loading tokenizer")
    limits, remembered = media_limits(ctx), remembered_items(ctx)
    preprocessor = Preprocessor(ctx.model_path, limits, remembered=remembered)
    return prompt_scheduler(ctx, preprocessor, preprocessor.add_voice)


class Preprocessor:
    """`PromptMaker` of one checkpoint."""

    def __init__(
        self, model_path: str, limits: MediaLimits, *, remembered: int = DEFAULT_ENTRIES
    ) -> None:
        settings = self._settings = load_settings(model_path)
        self._tokenizer = TextTokenizer(model_path, settings.context_length)
        self._chat = ChatEncoder(self._tokenizer, settings.marks)
        features = AudioFeatures(settings.audio)
        self._loader = MediaLoader(Rules(settings, features), limits, remembered=remembered)
        self._inputs = EncoderInputs(settings, features)
        self._decoding = threading.BoundedSemaphore(DECODING_AT_ONCE)
        self._voices = VoiceRecordings(model_path, limits, self._decoding, remembered=remembered)

    def stats(self) -> dict[str, float]:
        """Media items that were met before, and those that were not."""
        return self._loader.stats()

    def prompt(
        self,
        messages: tuple[Message, ...],
        params: RequestParams,
        tools: tuple[Tool, ...] = (),
        stop: Stop = never,
    ) -> Prompt:
        """See `PromptMaker`."""
        if tools:
            raise RequestError("this model takes no tools", param="tools")
        least = [MediaSize() for m in messages for p in m.content if isinstance(p, MediaPart)]
        shortest = self._chat.encode(messages, least)
        # Each item has marks around it: before any of too many is fetched.
        check_length(_length(shortest), params, self._settings.context_length)
        encoded = self._loader.fetch(messages, params.media, stop)
        recalled = self._loader.recall(encoded)
        with self._decoding if None in recalled else nullcontext():
            media = self._loader.decode(encoded, recalled, params.media, stop)
            require_wanted(stop)
            prompt = self._prompt(messages, media, params)
            self._loader.remember(media)
        return prompt

    def reading(self, text: str) -> Prompt:
        """See `PromptMaker`; the text is for the Talker's front end, its tokens are only counted.

        RequestError for a text without anything to say, or one that is too long.
        """
        if len(text) > LONGEST_READING:
            raise RequestError(
                f"the text has {len(text)} characters; at most {LONGEST_READING} are read aloud in "
                "one request",
                param="read_aloud",
            )
        if not has_speech(text):
            raise RequestError(
                "the text has nothing to say: no letter and no digit", param="read_aloud"
            )
        ids = np.array(self._tokenizer.encode(text), dtype=np.int64)
        line, delta = positions([Line(ids.tolist())])
        return Prompt(input_ids=ids, positions=line, rope_delta=delta, routed=[], spoken_text=text)

    def raw(self, prompt: str | IntArray, params: RequestParams) -> Prompt:
        """See `PromptMaker`."""
        ids: IntArray
        if isinstance(prompt, str):
            ids = np.array(self._tokenizer.encode_raw(prompt), dtype=np.int64)
        else:
            ids = prompt
        check_raw(ids, self._settings.vocab_size, self._settings.marks.placeholders)
        check_length(len(ids), params, self._settings.context_length, param="prompt")
        line, delta = positions([Line(ids.tolist())])
        return Prompt(input_ids=ids, positions=line, rope_delta=delta, routed=[], raw=True)

    def add_voice(self, prompt: Payload, sample: VoiceSample, stop: Stop = never) -> None:
        """See `VoicePart`."""
        prompt["voice"] = self._voices.load(sample, stop)

    def _prompt(
        self, messages: tuple[Message, ...], media: list[Item], params: RequestParams
    ) -> Prompt:
        pieces = self._chat.encode(messages, [self._inputs.size(item) for item in media])
        # Before anything of that size exists: `min_pixels` can ask for any number of rows.
        check_length(_length(pieces), params, self._settings.context_length)
        ids = token_ids(pieces)
        line, delta = positions(pieces)
        prompt = Prompt(input_ids=ids, positions=line, rope_delta=delta, routed=[])
        marks = self._settings.marks
        if items := _of(media, "audio"):
            prompt["audio"] = self._inputs.audio(items, np.flatnonzero(ids == marks.audio))
            prompt["routed"].append("audio_encoder")
        if items := _of(media, "image"):
            prompt["image"] = self._inputs.visual(items, np.flatnonzero(ids == marks.image))
        if items := _of(media, "video"):
            video = self._inputs.visual(items, np.flatnonzero(ids == marks.frame))
            video["fps"], video["max_frames"] = self._loader.sampling(params.media)
            prompt["video"] = video
        if "image" in prompt or "video" in prompt:
            prompt["routed"].append("image_encoder")
        return prompt


def _length(pieces: Sequence[Piece]) -> int:
    return sum(piece.count for piece in pieces)


def _of(media: Sequence[Item], kind: str) -> list[Item]:
    return [item for item in media if item.encoded.kind == kind]
