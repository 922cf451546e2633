"""Sampling: checked request fields to `SamplingParams`, for the whole request and per stage.

Knows which fields exist and which contradict each other. Defaults are the checkpoint's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec

from omni_core.errors import RequestError
from omni_core.types import SamplingParams
from omni_server.openai.formats import response_grammar
from omni_server.schema.chat import ChatBody, SamplingFields
from omni_server.schema.decode import convert_field

MAX_STOP_STRINGS = 4


def request_sampling(body: ChatBody) -> SamplingParams:
    """The top-level sampling fields; `max_completion_tokens` and `max_tokens` are one limit."""
    params = to_params(body, _max_tokens(body))
    grammar = response_grammar(body.response_format)
    return msgspec.structs.replace(params, logprobs=_logprobs(body), grammar=grammar)


class HasStageParams(Protocol):
    """A body whose `stage_params` say how single stages sample."""

    stage_params: dict[str, dict[str, Any] | None] | None


def stage_sampling(body: HasStageParams, stages: Iterable[str]) -> dict[str, SamplingParams]:
    """`stage_params`, each entry checked against the stages there are and the fields there are."""
    known = tuple(stages)
    params = {}
    for stage, values in (body.stage_params or {}).items():
        path = f"stage_params.{stage}"
        if stage not in known:
            raise _unknown("stage", stage, known, path)
        for name in values or ():
            if name not in SamplingFields.__struct_fields__:
                names = SamplingFields.__struct_fields__
                raise _unknown("sampling field", name, names, f"{path}.{name}")
        fields = convert_field(values or {}, SamplingFields, path)
        params[stage] = to_params(fields, fields.max_tokens, f"{path}.")
    return params


def to_params(fields: SamplingFields, max_tokens: int | None, prefix: str = "") -> SamplingParams:
    """The fields of one stage, or of a body if they have no `prefix` there."""
    if max_tokens is not None and fields.min_tokens is not None and fields.min_tokens > max_tokens:
        raise RequestError(
            f"'{prefix}min_tokens' ({fields.min_tokens}) is over the limit of {max_tokens} tokens.",
            param=f"{prefix}min_tokens",
        )
    stop_ids = None if fields.stop_token_ids is None else tuple(fields.stop_token_ids)
    return SamplingParams(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=fields.logit_bias,
        seed=fields.seed,
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        stop=_stop(fields.stop, f"{prefix}stop"),
        stop_token_ids=stop_ids,
        ignore_eos=fields.ignore_eos,
    )


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return None


def _max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"'max_tokens' ({old}) and 'max_completion_tokens' ({new}) contradict each other; "
            "send max_completion_tokens alone.",
            param="max_tokens",
        )
    return old if new is None else new


def _stop(stop: str | list[str] | None, param: str) -> tuple[str, ...] | None:
    if stop is None:
        return None
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"'{param}' takes at most {MAX_STOP_STRINGS} strings.", param=param)
    if "" in strings:
        raise RequestError(f"'{param}' contains an empty string.", param=param)
    return strings or None


def _unknown(what: str, name: str, known: Iterable[str], param: str) -> RequestError:
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}."
    return RequestError(
        f"'{param}': unknown {what} {name!r}; {hint}", param=param, code="unknown_parameter"
    )
