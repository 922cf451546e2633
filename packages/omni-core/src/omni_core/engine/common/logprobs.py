"""Log-probabilities of sampled tokens, of the model's own distribution.

Knows raw logits and which rows ask. Knows nothing of rules or of how tokens were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_core.engine.base import TokenLogprobs
from omni_core.engine.common.transfer import upload


class BatchLogprobs:
    """The rows of one batch that ask for log-probabilities; good for many steps of it."""

    def __init__(self, wanted: Sequence[int | None], device: torch.device) -> None:
        """`wanted` as `SamplingParams.logprobs`, row by row."""
        self._tops = {row: top for row, top in enumerate(wanted) if top is not None}
        self._index = upload(list(self._tops), device) if self._tops else None
        self._top = max(self._tops.values(), default=0)

    def before_rules(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Log-probabilities (R, vocab) of the R rows that ask, from raw logits (M, vocab)."""
        return None if self._index is None else logits[self._index].log_softmax(-1)

    def of_tokens(self, logprobs: torch.Tensor | None, tokens: torch.Tensor) -> list[torch.Tensor]:
        """What `read` needs of the sampled tokens (M,); empty if no row asks."""
        if logprobs is None or self._index is None:
            return []
        chosen = logprobs.gather(-1, tokens[self._index][:, None])[:, 0]
        best = logprobs.topk(min(self._top, logprobs.shape[-1]))
        return [chosen, best.values, best.indices]

    def read(self, on_host: Sequence[torch.Tensor]) -> dict[int, TokenLogprobs]:
        """By row, from what `of_tokens` returned once it is on the host."""
        if not on_host:
            return {}
        chosen, values, indices = (tensor.tolist() for tensor in on_host)
        return {
            row: TokenLogprobs(
                chosen[i], tuple(zip(indices[i][:top], values[i][:top], strict=True))
            )
            for i, (row, top) in enumerate(self._tops.items())
        }
