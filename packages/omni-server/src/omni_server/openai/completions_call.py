"""One call of /v1/completions: what to ask of the pipeline, and how the caller wants to hear back.

Knows the pipeline's own description of itself and the request's meaning. Pure: bytes in, a
`CompletionsCall` or an `OmniError` out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from omni_core.errors import ContextLengthError, RequestError
from omni_core.pipeline import Pipeline
from omni_core.types import Request, RequestParams, SamplingParams
from omni_server.openai.call import check_model, check_reply_length, seeded
from omni_server.openai.refused import check_stream_options
from omni_server.openai.sampling import stage_sampling, to_params
from omni_server.schema.completions import CompletionBody
from omni_server.schema.decode import decode_body, short_value

DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's."""
MAX_CHARACTERS: Final = 4 * 1024 * 1024
"""Of all texts of a request, each as often as it is completed: that often it is tokenized."""
MAX_COMPLETIONS: Final = 32
"""Of all prompts of one call: each takes a place in the stages."""
_CHAT: Final = "use /v1/chat/completions"

Prompt: TypeAlias = str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsCall:
    """A checked request and the shape of its answer."""

    requests: tuple[Request, ...]
    """`n` for each prompt, in the order of their choices."""
    n: int
    n_prompts: int
    stream: bool
    include_usage: bool
    echo: bool

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token's log-probability is part of the answer."""
        return self.requests[0].params.sampling.logprobs is not None

    def param(self, index: int) -> str:
        """What the caller's body calls the prompt of a choice."""
        return _param(index // self.n, self.n_prompts)

    def echoed(self, index: int) -> str:
        """What stands before the text of a choice."""
        prompt = self.requests[index].prompt
        return prompt if self.echo and isinstance(prompt, str) else ""


def parse_call(
    body: bytes | bytearray,
    *,
    pipeline: Pipeline,
    served_model_name: str,
    request_id: str,
    client_named: Callable[[str | None], str],
    longest_s: float | None,
) -> CompletionsCall:
    """Check a request body against the API and against what this pipeline can do.

    `client_named` gives the key of the client for the `user` it names; `longest_s` is what the
    server lets a request take.
    """
    asked = decode_body(body, CompletionBody)
    check_model(asked.model, served_model_name)
    _require_completion(pipeline)
    _refuse_unsupported(asked, pipeline)
    check_stream_options(asked.stream_options, stream=bool(asked.stream))
    check_reply_length(asked.max_tokens, pipeline.info.context_length, "max_tokens")
    prompts, n = _prompts(asked, pipeline.info.context_length), asked.n or 1
    asking = Request(
        params=_params(asked, pipeline),
        request_id=request_id,
        client=client_named(asked.user),
        timeout_s=min(filter(None, (asked.timeout, longest_s)), default=None),
    )
    return CompletionsCall(
        requests=tuple(
            seeded(msgspec.structs.replace(asking, prompt=prompt), choice)
            for prompt in prompts
            for choice in range(n)
        ),
        n=n,
        n_prompts=len(prompts),
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        echo=bool(asked.echo),
    )


def _params(asked: CompletionBody, pipeline: Pipeline) -> RequestParams:
    sampling: SamplingParams = to_params(asked, asked.max_tokens or DEFAULT_MAX_TOKENS)
    return RequestParams(
        sampling=msgspec.structs.replace(sampling, logprobs=asked.logprobs),
        stage_params=stage_sampling(asked, pipeline.stages),
    )


def _prompts(asked: CompletionBody, context_length: int) -> list[Prompt]:
    """The prompts of a body, each of which can be completed, and not too many of them."""
    count, n = _count(asked.prompt), asked.n or 1
    if n * count > MAX_COMPLETIONS:
        raise RequestError(
            f"{count} prompts with {n} completions each; send at most {MAX_COMPLETIONS} of all in "
            "one request.",
            param="prompt" if count > MAX_COMPLETIONS else "n",
        )
    prompts = _listed(asked.prompt)
    characters = n * sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    if characters > MAX_CHARACTERS:
        raise RequestError(
            f"Prompts count once for each completion; these are over {MAX_CHARACTERS} characters "
            "together. Send shorter ones, or a smaller 'n'.",
            param="n",
        )
    for place, prompt in enumerate(prompts):
        param = _param(place, len(prompts))
        if not prompt:
            raise RequestError(f"'{param}' is empty; send what is to be completed.", param=param)
        if isinstance(prompt, tuple) and len(prompt) >= context_length:
            raise ContextLengthError(
                f"'{param}' has {len(prompt)} tokens and the model's context is {context_length}, "
                "which must also hold the completion; shorten it.",
                param=param,
            )
    return prompts


def _param(place: int, n_prompts: int) -> str:
    """What the caller's body calls one of its prompts."""
    return "prompt" if n_prompts == 1 else f"prompt[{place}]"


def _count(given: str | list[Any]) -> int:
    """How many prompts there are, if they are well formed."""
    match given:
        case str() | [int(), *_]:
            return 1
        case _:
            return len(given)


def _listed(given: str | list[Any]) -> list[Prompt]:
    """What is given in one of four shapes."""
    match given:
        case str():
            return [given]
        case [str(), *_] if all(isinstance(item, str) for item in given):
            return given
        case [int(), *_] if all(isinstance(item, int) for item in given):
            return [tuple(given)]
        case [list(), *_] if all(isinstance(item, list) for item in given):
            return [tuple(ids) for ids in given]
        case _:
            raise RequestError(
                "'prompt' is a string, strings, token ids, or lists of token ids, and not empty.",
                param="prompt",
            )


def _require_completion(pipeline: Pipeline) -> None:
    if not pipeline.info.completes_prompts:
        raise RequestError(
            f"This model answers messages and completes no raw prompts; {_CHAT}.",
            param="model",
            code="unsupported_model",
        )


def _refuse_unsupported(asked: CompletionBody, pipeline: Pipeline) -> None:
    """RequestError naming the first field that asks for what cannot be had."""
    is_text = isinstance(asked.prompt, str) or isinstance(next(iter(asked.prompt), ""), str)
    raw = {
        name: short_value(getattr(asked, name), name)
        for name in ("suffix", "response_format", "tools", "modalities", "audio")
    }
    reasons = (
        ("suffix", raw["suffix"] not in (None, ""), "the model continues text and fills no gaps"),
        ("best_of", asked.best_of not in (None, asked.n or 1), "all 'n' completions are returned"),
        ("echo", asked.echo and asked.logprobs is not None, "prompts have no log-probabilities"),
        ("echo", asked.echo and not is_text, "token ids are not turned back into text"),
        ("logprobs", asked.logprobs is not None and not pipeline.info.logprobs, "there are none"),
        ("response_format", raw["response_format"] not in (None, {"type": "text"}), _CHAT),
        ("tools", raw["tools"] not in (None, []), _CHAT),
        ("modalities", raw["modalities"] not in (None, ["text"]), _CHAT),
        ("audio", raw["audio"] is not None, _CHAT),
    )
    for name, is_asked, reason in reasons:
        if is_asked:
            raise RequestError(
                f"'{name}' is not supported here: {reason}; leave it out.",
                param=name,
                code="unsupported_parameter",
            )
