from __future__ import annotations
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeAlias, cast
import msgspec
import numpy as np
DECODING_AT_ONCE = 4

class PromptMaker(Protocol):

    def prompt(self, messages: tuple[Message, ...], params: RequestParams, tools: tuple[Tool, ...], stop: Stop) -> Any:
        ...

    def reading(self, text: str) -> Any:
        ...

    def raw(self, prompt: str | IntArray, params: RequestParams) -> Any:
        ...

    def stats(self) -> dict[str, float]:
        ...
VoicePart: TypeAlias = Callable[[Payload, VoiceSample, Stop], None]

def prompt_scheduler(ctx: StageContext, maker: PromptMaker, voice_part: VoicePart | None=None) -> Scheduler:
    ...

def remembered_items(ctx: StageContext) -> int:
    ...

def media_limits(ctx: StageContext) -> MediaLimits:
    ...

def made_prompt(maker: PromptMaker, work: Work, voice_part: VoicePart | None=None) -> Payload | OmniError:
    ...

def check_length(prompt_tokens: int, params: RequestParams, context_length: int, *, param: str='messages') -> None:
    ...

def check_raw(ids: IntArray, vocab_size: int, placeholders: Sequence[int]) -> None:
    ...
