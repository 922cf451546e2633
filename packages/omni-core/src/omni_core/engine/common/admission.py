"""Whether a request can be served at all, were it alone."""

from __future__ import annotations

from collections.abc import Callable

from omni_core.engine.base import EngineRequest
from omni_core.engine.common.rules import check_sampling
from omni_core.engine.stop import StopMatcher
from omni_core.errors import ContextLengthError, RequestError


def output_limit(request: EngineRequest, max_len: int) -> int:
    """Tokens the reply may have: `max_tokens`, or fewer where the context ends."""
    room = max_len - request.prompt_len
    wanted = request.sampling.max_tokens
    return room if wanted is None else min(wanted, room)


def check_request(
    request: EngineRequest,
    *,
    feedback: bool,
    max_len: int,
    vocab_size: int,
    pages_for: Callable[[int], int],
    pages_total: int,
) -> None:
    """RequestError, or its subclass ContextLengthError, if the request can never run."""
    _check_open(request, feedback)
    prompt, wanted = request.prompt_len, request.sampling.max_tokens
    if prompt < 1:
        raise RequestError("the prompt is empty", param="messages")
    if wanted is not None and wanted < 1:
        raise RequestError(f"max_tokens must be at least 1, not {wanted}", param="max_tokens")
    if request.sampling.stop:
        StopMatcher(request.sampling.stop)
    check_sampling(request.sampling, vocab_size)
    if prompt + 1 > max_len:
        raise ContextLengthError(
            f"the prompt has {prompt} tokens and the reply needs at least 1, but the context holds "
            f"{max_len} tokens; shorten the prompt to at most {max_len - 1}",
            param="messages",
        )
    if request.strict_max_tokens and wanted is not None and prompt + wanted > max_len:
        raise ContextLengthError(
            f"the prompt has {prompt} tokens and max_tokens is {wanted}, but the context holds "
            f"{max_len} tokens; lower max_tokens to at most {max_len - prompt} or shorten the "
            "prompt",
            param="max_tokens",
        )
    needed = pages_for(prompt + output_limit(request, max_len))
    if needed > pages_total:
        raise ContextLengthError(
            f"prompt ({prompt} tokens) and reply (up to {output_limit(request, max_len)}) need "
            f"{needed} KV pages, but the cache has {pages_total}; lower max_tokens, or have "
            "the operator raise kv_budget_bytes",
            param="max_tokens",
        )


def _check_open(request: EngineRequest, feedback: bool) -> None:
    if request.open_prompt and (request.row_keys is not None or not feedback):
        raise ValueError(
            f"request {request.request_id!r}: an open prompt needs a runner with feedback, and its "
            "KV is not shared; leave out row_keys"
        )
