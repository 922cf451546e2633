"""Log-probabilities of a reply as OpenAI writes them: `ChoiceLogprobs` of the openai package.

Knows tokens as bytes. A token that ends inside a character shows U+FFFD as text; its `bytes` join
with those of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omni_core.types import TokenLogprob, TopLogprob


def logprobs_object(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` for the tokens of a reply, or of a chunk of it."""
    content = [
        {**token_object(token), "top_logprobs": [token_object(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def token_object(token: TopLogprob) -> dict[str, Any]:
    """`token`, `bytes` and `logprob` of one token."""
    return {
        "token": token.spelling.decode(errors="replace"),
        "bytes": list(token.spelling) or None,
        "logprob": token.logprob,
    }
