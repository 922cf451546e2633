"""What any stage that writes replies does with them: requests to its engine, tokens to decode.

Knows requests, sampling and usage. Knows nothing of prompts' media, nor of who speaks a reply.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.scheduler.base import Outbox, Work
from omni_core.text.payloads import ReplyStart, TokenChunk, as_logprobs
from omni_core.types import Grammar, IntArray, Payload, RequestParams, SamplingParams, Usage

NAME: Final = "thinker"
"""Of the stage, for which a request may have parameters of its own."""
TEXT_TARGET: Final = "decode"


def asked_sampling(params: RequestParams) -> SamplingParams:
    """How the caller wants replies sampled; parameters for this stage win over the request's."""
    return params.sampling_for(NAME).over(params.sampling)


def engine_request(
    work: Work,
    inputs: Any,
    token_ids: tuple[int, ...],
    row_keys: IntArray,
    *,
    defaults: SamplingParams,
    grammar: Grammar | None,
) -> EngineRequest:
    """A request for a reply to the prompt `token_ids`, held to `grammar`; `defaults` are the
    checkpoint's, `inputs` the runner's."""
    asked = asked_sampling(work.params)
    return EngineRequest(
        request_id=work.request_id,
        prompt_len=len(token_ids),
        inputs=inputs,
        params=work.params,
        sampling=msgspec.structs.replace(asked.over(defaults), grammar=grammar),
        prompt_token_ids=token_ids,
        row_keys=row_keys,
        strict_max_tokens=asked.max_tokens is not None,
    )


def prompt_usage(
    token_ids: tuple[int, ...], *, audio: Collection[int], pictures: Collection[int]
) -> Usage:
    """Of a prompt whose media stand on placeholders with the ids `audio` and `pictures`."""
    return Usage(
        prompt_tokens=len(token_ids),
        prompt_audio_tokens=sum(map(token_ids.count, audio)),
        prompt_image_tokens=sum(map(token_ids.count, pictures)),
    )


@dataclass(frozen=True, slots=True)
class TextReply:
    """One reply on its way to decode."""

    start: ReplyStart
    prompt: Usage

    def write(self, request_id: str, output: StepOutput, outbox: Outbox) -> None:
        """Send on what a step sampled."""
        if output.index == 0:
            outbox.send(request_id, cast(Payload, self.start), target=TEXT_TARGET)
        chunk = TokenChunk(token=output.token, finish=output.finish_reason)
        if output.logprobs is not None:
            chunk["logprobs"] = as_logprobs(output.logprobs)
        outbox.stream(request_id, chunk, target=TEXT_TARGET)

    def end(self, request_id: str, output: StepOutput, outbox: Outbox) -> None:
        """`output` was the last: end the streams to all targets, and the request here."""
        outbox.stream_done(request_id)
        used = Usage(text_tokens=output.index + 1, cached_tokens=output.cached_tokens)
        outbox.done(request_id, self.prompt + used)
