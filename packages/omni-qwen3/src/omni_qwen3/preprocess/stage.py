"""The preprocessing stage: messages in, token ids with positions and media arrays out.

Knows the order of the steps; each step has a module of its own. Everything a request can get wrong
about its prompt is found here, before a model runs.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import fields
from typing import cast

import msgspec
import numpy as np

from omni_core.encoder.options import CACHE_ENTRIES, DEFAULT_ENTRIES, whole_number
from omni_core.errors import ConfigError, ContextLengthError, OmniError, RequestError
from omni_core.media import MediaLimits
from omni_core.media.patience import Stop, never
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import (
    IntArray,
    MediaKind,
    MediaOptions,
    MediaPart,
    Message,
    Payload,
    RequestParams,
    Tool,
    ToolUse,
)
from omni_qwen3.payloads import Prompt
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.chat import ChatEncoder
from omni_qwen3.preprocess.inputs import EncoderInputs, grid_array
from omni_qwen3.preprocess.media import Item, MediaLoader, require_wanted
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.preprocess.settings import PromptConfig, Settings, load_settings
from omni_qwen3.preprocess.tokens import MediaSizes, expand, expanded_length, rows_of

DECODING_AT_ONCE = 4
"""Requests whose media are decoded at a time, which takes cores and memory; waiting for hosts takes
neither, so many more may wait (the stage's `max_concurrency`)."""


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler; `options` of the stage are fields of `MediaLimits`, and how many items
    it remembers."""
    ctx.report("loading tokenizer and processors")
    remembered = whole_number(ctx.stage, CACHE_ENTRIES, DEFAULT_ENTRIES, least=0)
    preprocessor = Preprocessor(ctx.model_path, _limits(ctx), remembered=remembered)
    return SimpleScheduler(
        preprocessor.compute,
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
        more_stats=preprocessor.stats,
    )


def _limits(ctx: StageContext) -> MediaLimits:
    known = [field.name for field in fields(MediaLimits)]
    given = {name: value for name, value in ctx.stage.options.items() if name != CACHE_ENTRIES}
    problems = [
        f"stage {ctx.stage.name!r} has no option {name!r}; it takes "
        f"{', '.join([*known, CACHE_ENTRIES])}"
        for name in given
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    try:
        return msgspec.convert(given, MediaLimits)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"options of stage {ctx.stage.name!r}: {exc}") from exc


class Preprocessor:
    """Turns requests into prompts; safe to call from several threads."""

    def __init__(
        self, model_path: str, limits: MediaLimits, *, remembered: int = DEFAULT_ENTRIES
    ) -> None:
        self._settings = load_settings(model_path)
        self._chat = ChatEncoder(model_path, self._settings.context_length)
        features = AudioFeatures(self._settings.audio)
        self._loader = MediaLoader(self._settings, features, limits, remembered=remembered)
        self._inputs = EncoderInputs(self._settings, features)
        self._decoding = threading.BoundedSemaphore(DECODING_AT_ONCE)

    def compute(self, works: list[Work]) -> list[Payload | OmniError]:
        """One prompt, or the error of its request, for each of `works`."""
        return [self._result(work) for work in works]

    def stats(self) -> dict[str, float]:
        """Media items that were met before, and those that were not."""
        return self._loader.stats()

    def _result(self, work: Work) -> Payload | OmniError:
        try:
            if (text := work.payload.get("read_aloud")) is not None:
                return cast(Payload, self.reading(text))
            if (raw := work.payload.get("prompt")) is not None:
                return cast(Payload, self.raw(raw, work.params))
            messages = msgspec.msgpack.decode(work.payload["messages"], type=tuple[Message, ...])
            packed: bytes | None = work.payload.get("tool_use")
            use = None if packed is None else msgspec.msgpack.decode(packed, type=ToolUse)
            tools = () if use is None else use.tools
            prompt = self.prompt(messages, work.params, tools, work.stop)
        except OmniError as error:
            return error
        if packed is not None:
            prompt["tool_use"] = packed
        return cast(Payload, prompt)

    def prompt(
        self,
        messages: tuple[Message, ...],
        params: RequestParams,
        tools: tuple[Tool, ...] = (),
        stop: Stop = never,
    ) -> Prompt:
        """Everything the encoders and the Thinker need of `messages` and of functions to call.

        Raises RequestError for messages the model cannot take, MediaError for media that cannot be
        read, ContextLengthError when prompt and requested reply exceed the context, and
        RequestCancelledError once `stop` says that nobody waits.
        """
        placeholders = self._chat.encode(messages, tools)
        _check_placeholders(placeholders, messages, self._settings.prompt)
        # Each item has a placeholder: before any of too many is fetched.
        check_length(len(placeholders), params, self._settings.context_length)
        encoded = self._loader.fetch(messages, params.media, stop)
        recalled = self._loader.recall(encoded)
        with self._decoding if None in recalled else nullcontext():
            media = self._loader.decode(encoded, recalled, params.media, stop)
            require_wanted(stop)
            prompt = self._prompt(placeholders, media, params)
            self._loader.remember(media)
        return prompt

    def reading(self, text: str) -> Prompt:
        """What the Talker needs to say `text`.

        Raises RequestError for a text without a token, ContextLengthError for one that no reply
        could be as long as.
        """
        ids, spoken = self._chat.read_aloud(text)
        if not spoken:
            raise RequestError("the text to read aloud is empty", param="read_aloud")
        if len(ids) + len(spoken) > self._settings.context_length:
            raise ContextLengthError(
                f"the text has {len(spoken)} tokens, which exceed the model's context of "
                f"{self._settings.context_length}; read it in several requests",
                param="read_aloud",
            )
        prompt = self._positioned(np.array(ids), self._inputs.sizes([], MediaOptions()))
        prompt["spoken_ids"] = np.array(spoken, dtype=np.int64)
        return prompt

    def raw(self, prompt: str | IntArray, params: RequestParams) -> Prompt:
        """What the Thinker needs to complete a raw prompt.

        Raises RequestError for a prompt that is empty, has a place for media or ids that are no
        tokens, ContextLengthError when prompt and requested reply exceed the context.
        """
        ids = np.array(self._chat.raw(prompt)) if isinstance(prompt, str) else prompt
        if not len(ids):
            raise RequestError("the prompt is empty", param="prompt")
        _check_tokens(ids, self._settings)
        check_length(len(ids), params, self._settings.context_length, param="prompt")
        positions = np.broadcast_to(np.arange(len(ids), dtype=np.float32), (3, len(ids)))
        return Prompt(input_ids=ids, positions=positions, rope_delta=0.0, routed=[], raw=True)

    def _prompt(self, placeholders: list[int], media: list[Item], params: RequestParams) -> Prompt:
        config = self._settings.prompt
        sizes = self._inputs.sizes(media, params.media)
        # Before anything of that size exists: `min_pixels` can ask for any number of rows.
        length = expanded_length(len(placeholders), sizes, config)
        check_length(length, params, self._settings.context_length)
        ids = expand(
            placeholders, sizes, audio_end_token_id=self._chat.audio_end_token_id, config=config
        )
        prompt = self._positioned(ids, sizes)
        if sizes.audio_lengths:
            rows = rows_of(ids, config.audio_token_id)
            prompt["audio"] = self._inputs.audio(media, sizes, rows)
            prompt["routed"].append("audio_encoder")
        if sizes.image_grids:
            rows = rows_of(ids, config.image_token_id)
            prompt["image"] = self._inputs.images(media, sizes, rows)
        if sizes.video_grids:
            rows = rows_of(ids, config.video_token_id)
            sampling = self._loader.sampling(params.media)
            prompt["video"] = self._inputs.videos(media, sizes, rows, sampling)
        if sizes.image_grids or sizes.video_grids:
            prompt["routed"].append("image_encoder")
        return prompt

    def _positioned(self, ids: IntArray, sizes: MediaSizes) -> Prompt:
        positions, delta = rope_index(
            ids,
            image_grid_thw=grid_array(sizes.image_grids) if sizes.image_grids else None,
            video_grid_thw=grid_array(sizes.video_grids) if sizes.video_grids else None,
            second_per_grid=sizes.second_per_grid,
            audio_lengths=np.array(sizes.audio_lengths, dtype=np.int64),
            use_audio_in_video=sizes.use_audio_in_video,
            config=self._settings.prompt,
        )
        return Prompt(input_ids=ids, positions=positions, rope_delta=delta, routed=[])


def check_length(
    prompt_tokens: int, params: RequestParams, context_length: int, *, param: str = "messages"
) -> None:
    """ContextLengthError unless the prompt and the reply the caller asks for fit the context;
    `param` is what the prompt is made of."""
    wanted = params.sampling_for("thinker").over(params.sampling).max_tokens
    if prompt_tokens >= context_length:
        less = " or send less or smaller media" if param == "messages" else ""
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_length}, "
            f"which must also hold the reply; shorten the {param}{less}",
            param=param,
        )
    if wanted is not None and prompt_tokens + wanted > context_length:
        raise ContextLengthError(
            f"the prompt's {prompt_tokens} tokens plus max_tokens {wanted} exceed the model's "
            f"context of {context_length}; ask for at most {context_length - prompt_tokens} tokens "
            f"or shorten the {param}",
            param="max_tokens",
        )


def _check_tokens(ids: IntArray, settings: Settings) -> None:
    """All must be tokens of the Thinker, and none a row that an encoder would fill."""
    if ids.min() < 0 or ids.max() >= settings.vocab_size:
        raise RequestError(
            f"token ids of this model are 0 to {settings.vocab_size - 1}", param="prompt"
        )
    config = settings.prompt
    if np.isin(ids, (config.image_token_id, config.audio_token_id, config.video_token_id)).any():
        raise RequestError(
            "the prompt has a place for an image, audio or video, and there is none to put in; "
            "send media in messages",
            param="prompt",
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
