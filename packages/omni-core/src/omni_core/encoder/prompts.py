"""The preprocessing stage of a model, but for what its prompts look like (`PromptMaker`).

Knows requests, limits and lengths. Knows no template, tokenizer or encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeAlias, cast

import msgspec
import numpy as np

from omni_core.encoder.options import CACHE_ENTRIES, DEFAULT_ENTRIES, whole_number
from omni_core.errors import (
    ConfigError,
    ContextLengthError,
    OmniError,
    RequestError,
    StageError,
)
from omni_core.media import MediaLimits
from omni_core.media.patience import Stop
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.text.stage import asked_sampling
from omni_core.types import (
    IntArray,
    Message,
    Payload,
    RequestParams,
    Tool,
    ToolUse,
    VoiceSample,
)

DECODING_AT_ONCE = 4
"""Requests whose media are decoded at a time, which takes cores and memory; waiting for hosts takes
neither, so many more may wait (the stage's `max_concurrency`)."""


class PromptMaker(Protocol):
    """Turns requests into prompts; safe to call from several threads. Raises OmniErrors."""

    def prompt(
        self,
        messages: tuple[Message, ...],
        params: RequestParams,
        tools: tuple[Tool, ...],
        stop: Stop,
    ) -> Any:
        """The prompt of messages; RequestCancelledError once `stop` says that nobody waits."""

    def reading(self, text: str) -> Any:
        """What is needed to say `text`."""

    def raw(self, prompt: str | IntArray, params: RequestParams) -> Any:
        """What is needed to complete a raw prompt."""

    def stats(self) -> dict[str, float]:
        """Counters of the stage."""


VoicePart: TypeAlias = Callable[[Payload, VoiceSample, Stop], None]
"""(prompt, sample, stop): puts into a prompt what the stages behind need of the voice it is to be
answered with. Safe to call from several threads; raises OmniErrors."""


def prompt_scheduler(
    ctx: StageContext, maker: PromptMaker, voice_part: VoicePart | None = None
) -> Scheduler:
    """The scheduler of a preprocessing stage; with `voice_part` if the model clones voices."""
    return SimpleScheduler(
        lambda works: [made_prompt(maker, work, voice_part) for work in works],
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
        more_stats=maker.stats,
    )


def remembered_items(ctx: StageContext) -> int:
    """Items whose measures the stage is to remember."""
    return whole_number(ctx.stage, CACHE_ENTRIES, DEFAULT_ENTRIES, least=0)


def media_limits(ctx: StageContext) -> MediaLimits:
    """What the stage's options say of them; ConfigError for unknown ones."""
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


def made_prompt(
    maker: PromptMaker, work: Work, voice_part: VoicePart | None = None
) -> Payload | OmniError:
    """The prompt of a request, or the request's error."""
    try:
        prompt = _prompt(maker, work)
        packed: bytes | None = work.payload.get("voice_sample")
        if packed is not None:
            if voice_part is None:
                raise StageError("a voice to clone came to a pipeline that clones none")
            sample = msgspec.msgpack.decode(packed, type=VoiceSample)
            voice_part(prompt, sample, work.stop)
    except OmniError as error:
        return error
    return prompt


def _prompt(maker: PromptMaker, work: Work) -> Payload:
    if (text := work.payload.get("read_aloud")) is not None:
        return cast(Payload, maker.reading(text))
    if (raw := work.payload.get("prompt")) is not None:
        return cast(Payload, maker.raw(raw, work.params))
    messages = msgspec.msgpack.decode(work.payload["messages"], type=tuple[Message, ...])
    packed: bytes | None = work.payload.get("tool_use")
    use = None if packed is None else msgspec.msgpack.decode(packed, type=ToolUse)
    tools = () if use is None else use.tools
    prompt = cast(Payload, maker.prompt(messages, work.params, tools, work.stop))
    if packed is not None:
        prompt["tool_use"] = packed
    return prompt


def check_length(
    prompt_tokens: int, params: RequestParams, context_length: int, *, param: str = "messages"
) -> None:
    """ContextLengthError unless the prompt and the reply the caller asks for fit the context;
    `param` is what the prompt is made of."""
    wanted = asked_sampling(params).max_tokens
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


def check_raw(ids: IntArray, vocab_size: int, placeholders: Sequence[int]) -> None:
    """RequestError unless there are ids, all of tokens of the model, and none of them a place that
    an encoder would fill."""
    if not len(ids):
        raise RequestError("the prompt is empty", param="prompt")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise RequestError(f"token ids of this model are 0 to {vocab_size - 1}", param="prompt")
    if np.isin(ids, placeholders).any():
        raise RequestError(
            "the prompt has a place for an image, audio or video, and there is none to put in; "
            "send media in messages",
            param="prompt",
        )
