"""The preprocessing stage: messages in, token ids with positions and media arrays out.

Knows the order of the steps; each step has a module of its own. Everything a request can get wrong
about its prompt is found here, before a model runs.
"""

from __future__ import annotations

import threading
from dataclasses import fields
from typing import cast

import msgspec
import numpy as np

from omni_core.errors import ConfigError, ContextLengthError, OmniError, RequestError
from omni_core.media import MediaLimits
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import (
    IntArray,
    MediaKind,
    MediaPart,
    Message,
    Payload,
    RequestParams,
)
from omni_qwen3.payloads import Audio, Prompt, Visual
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.chat import ChatEncoder
from omni_qwen3.preprocess.image import image_patches
from omni_qwen3.preprocess.media import Media, MediaLoader
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.preprocess.settings import PromptConfig, load_settings
from omni_qwen3.preprocess.tokens import MediaSizes, expand, expanded_length, rows_of
from omni_qwen3.preprocess.video import video_patches

DECODING_AT_ONCE = 4
"""Requests whose media are decoded at a time, which takes cores and memory; waiting for hosts takes
neither, so many more may wait (the stage's `max_concurrency`)."""


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler; `options` of the stage are fields of `MediaLimits`."""
    ctx.report("loading tokenizer and processors")
    preprocessor = Preprocessor(ctx.model_path, _limits(ctx))
    return SimpleScheduler(
        preprocessor.compute,
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
    )


def _limits(ctx: StageContext) -> MediaLimits:
    known = [field.name for field in fields(MediaLimits)]
    problems = [
        f"stage {ctx.stage.name!r} has no option {name!r}; it takes {', '.join(known)}"
        for name in ctx.stage.options
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    try:
        return msgspec.convert(ctx.stage.options, MediaLimits)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"options of stage {ctx.stage.name!r}: {exc}") from exc


class Preprocessor:
    """Turns requests into prompts; safe to call from several threads."""

    def __init__(self, model_path: str, limits: MediaLimits) -> None:
        self._settings = load_settings(model_path)
        self._chat = ChatEncoder(model_path)
        self._features = AudioFeatures(self._settings.audio)
        self._loader = MediaLoader(self._settings, self._features, limits)
        self._decoding = threading.BoundedSemaphore(DECODING_AT_ONCE)

    def compute(self, works: list[Work]) -> list[Payload | OmniError]:
        """One prompt, or the error of its request, for each of `works`."""
        return [self._result(work) for work in works]

    def _result(self, work: Work) -> Payload | OmniError:
        messages = msgspec.msgpack.decode(work.payload["messages"], type=tuple[Message, ...])
        try:
            return cast(Payload, self.prompt(messages, work.params))
        except OmniError as error:
            return error

    def prompt(self, messages: tuple[Message, ...], params: RequestParams) -> Prompt:
        """Everything the encoders and the Thinker need of `messages`.

        Raises RequestError for messages the model cannot take, MediaError for media that cannot be
        read, ContextLengthError when prompt and requested reply exceed the context.
        """
        placeholders = self._chat.encode(messages)
        _check_placeholders(placeholders, messages, self._settings.prompt)
        items = self._loader.fetch(messages)
        if not items:
            return self._prompt(placeholders, Media(), params)
        with self._decoding:
            return self._prompt(placeholders, self._loader.decode(items, params.media), params)

    def _prompt(self, placeholders: list[int], media: Media, params: RequestParams) -> Prompt:
        config = self._settings.prompt
        audio = self._features(media.audios) if media.audios else None
        sizes = MediaSizes(
            image_grids=media.image_grids,
            video_grids=media.video_grids,
            second_per_grid=[self._settings.video.seconds_per_grid(c.fps) for c in media.videos],
            audio_lengths=[] if audio is None else audio[1].tolist(),
            use_audio_in_video=params.media.use_audio_in_video,
        )
        # Before anything of that size exists: `min_pixels` can ask for any number of rows.
        length = expanded_length(len(placeholders), sizes, config)
        check_length(length, params, self._settings.context_length)
        ids = expand(
            placeholders, sizes, audio_end_token_id=self._chat.audio_end_token_id, config=config
        )
        prompt = self._positioned(ids, sizes)
        if audio is not None:
            features, lengths = audio
            rows = rows_of(ids, config.audio_token_id)
            prompt["audio"] = Audio(input_features=features, lengths=lengths, rows=rows)
            prompt["routed"].append("audio_encoder")
        self._add_pictures(prompt, media, sizes)
        return prompt

    def _positioned(self, ids: IntArray, sizes: MediaSizes) -> Prompt:
        positions, delta = rope_index(
            ids,
            image_grid_thw=_grid_array(sizes.image_grids),
            video_grid_thw=_grid_array(sizes.video_grids),
            second_per_grid=sizes.second_per_grid,
            audio_lengths=np.array(sizes.audio_lengths, dtype=np.int64),
            use_audio_in_video=sizes.use_audio_in_video,
            config=self._settings.prompt,
        )
        return Prompt(input_ids=ids, positions=positions, rope_delta=delta, routed=[])

    def _add_pictures(self, prompt: Prompt, media: Media, sizes: MediaSizes) -> None:
        ids, settings = prompt["input_ids"], self._settings
        if media.images:
            pairs = zip(media.images, sizes.image_grids, strict=True)
            prompt["image"] = Visual(
                pixel_values=np.concatenate(
                    [image_patches(image, grid, settings.image) for image, grid in pairs]
                ),
                grid_thw=np.array(sizes.image_grids, dtype=np.int64),
                params=media.image_params,
                rows=rows_of(ids, settings.prompt.image_token_id),
            )
        if media.videos:
            clips = zip(media.videos, sizes.video_grids, strict=True)
            prompt["video"] = Visual(
                pixel_values=np.concatenate(
                    [video_patches(clip.frames, grid, settings.video) for clip, grid in clips]
                ),
                grid_thw=np.array(sizes.video_grids, dtype=np.int64),
                params=media.video_params,
                rows=rows_of(ids, settings.prompt.video_token_id),
                second_per_grid=sizes.second_per_grid,
            )
        if media.images or media.videos:
            prompt["routed"].append("image_encoder")


def check_length(prompt_tokens: int, params: RequestParams, context_length: int) -> None:
    """ContextLengthError unless the prompt and the reply the caller asks for fit the context."""
    wanted = params.sampling_for("thinker").over(params.sampling).max_tokens
    if prompt_tokens >= context_length:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_length}, "
            "which must also hold the reply; shorten the messages or send less or smaller media",
            param="messages",
        )
    if wanted is not None and prompt_tokens + wanted > context_length:
        raise ContextLengthError(
            f"the prompt's {prompt_tokens} tokens plus max_tokens {wanted} exceed the model's "
            f"context of {context_length}; ask for at most {context_length - prompt_tokens} tokens "
            "or shorten the messages",
            param="max_tokens",
        )


def _check_placeholders(
    ids: list[int], messages: tuple[Message, ...], config: PromptConfig
) -> None:
    """The template must have written one placeholder per media part; some roles allow none."""
    tokens = {
        "image": config.image_token_id,
        "audio": config.audio_token_id,
        "video": config.video_token_id,
    }
    parts = [p.kind for m in messages for p in m.content if isinstance(p, MediaPart)]
    for kind, token in tokens.items():
        if ids.count(token) != parts.count(cast(MediaKind, kind)):
            raise RequestError(
                f"the model's chat template has no place for {kind} where the messages put it; "
                "send media in user messages",
                param="messages",
            )


def _grid_array(grids: list[list[int]]) -> IntArray | None:
    return np.array(grids, dtype=np.int64) if grids else None
