"""The preprocessing stage: messages in, token ids with positions and media arrays out.

Knows the order of the steps; each step has a module of its own. Everything a request can get wrong
about its prompt is found here, before a model runs.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import cast

import numpy as np

from omni_core.encoder.media import Item, MediaLoader, require_wanted
from omni_core.encoder.options import DEFAULT_ENTRIES
from omni_core.encoder.prompts import (
    DECODING_AT_ONCE,
    check_length,
    check_raw,
    made_prompt,
    media_limits,
    prompt_scheduler,
    remembered_items,
)
from omni_core.errors import ContextLengthError, OmniError, RequestError
from omni_core.media import MediaLimits
from omni_core.media.patience import Stop, never
from omni_core.scheduler.base import Scheduler, Work
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
)
from omni_qwen3.payloads import Prompt
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.chat import ChatEncoder
from omni_qwen3.preprocess.inputs import EncoderInputs, grid_array
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.preprocess.rules import Rules
from omni_qwen3.preprocess.settings import PromptConfig, load_settings
from omni_qwen3.preprocess.tokens import MediaSizes, expand, expanded_length, rows_of


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler; `options` of the stage are fields of `MediaLimits`, and how many items
    it remembers."""
    ctx.report("loading tokenizer and processors")
    limits, remembered = media_limits(ctx), remembered_items(ctx)
    return prompt_scheduler(ctx, Preprocessor(ctx.model_path, limits, remembered=remembered))


class Preprocessor:
    """Turns requests into prompts; safe to call from several threads."""

    def __init__(
        self, model_path: str, limits: MediaLimits, *, remembered: int = DEFAULT_ENTRIES
    ) -> None:
        self._settings = load_settings(model_path)
        self._chat = ChatEncoder(model_path, self._settings.context_length)
        features = AudioFeatures(self._settings.audio)
        rules = Rules(self._settings, features)
        self._loader = MediaLoader(rules, limits, remembered=remembered)
        self._inputs = EncoderInputs(self._settings, features)
        self._decoding = threading.BoundedSemaphore(DECODING_AT_ONCE)

    def compute(self, works: list[Work]) -> list[Payload | OmniError]:
        """One prompt, or the error of its request, for each of `works`."""
        return [made_prompt(self, work) for work in works]

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
        config = self._settings.prompt
        media = (config.image_token_id, config.audio_token_id, config.video_token_id)
        check_raw(ids, self._settings.vocab_size, media)
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
