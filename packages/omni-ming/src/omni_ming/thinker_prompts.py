"""The requests of a Thinker: what both engines' runners do with prompts, tokens and replies.

Knows prompts with media. Knows nothing of layers, batching or where weights lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omni_core.engine.base import KVSpec
from omni_core.engine.base import Sequence as EngineSequence
from omni_ming.model.config import ThinkerConfig
from omni_ming.prompt import Prompt


class ThinkerPrompts:
    """The part of a runner that answers for requests, whose `inputs` are a `Prepared`; see
    `ARRunner`."""

    suppress: torch.Tensor | None = None
    feedback = False
    prefix_cache = True

    def __init__(
        self,
        config: ThinkerConfig,
        *,
        eos_token_ids: frozenset[int],
        detokenize: Callable[[list[int]], str],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`device` and `dtype` of rows."""
        self.config = config
        self.device, self.dtype = device, dtype
        self.vocab_size = config.vocab_size
        self.eos_token_ids = eos_token_ids
        self.kv = KVSpec(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_len=config.max_len,
        )
        self._detokenize = detokenize

    def open(self, seq: EngineSequence) -> None:
        """Move the prompt's media rows to the device; see `ARRunner`."""
        seq.state = Prompt(seq.request.inputs, device=self.device, dtype=self.dtype)

    def resume(self, seq: EngineSequence) -> None:
        """The prompt is still there, and so are the tokens."""

    def keep(self, seq: EngineSequence, start: int, stop: int) -> Any:
        """Nothing but KV is shared."""
        return None

    def restore(self, seq: EngineSequence, start: int, stop: int, kept: Any) -> None:
        """See `keep`."""

    def feed(self, seq: EngineSequence, chunk: Any) -> None:
        """Nothing streams into the Thinker."""

    def ready(self, seq: EngineSequence) -> bool:
        """Always: the next row is the sampled token's embedding."""
        return True

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """Nothing beside the token."""
        return [None] * len(seqs)

    def text(self, token_ids: list[int]) -> str:
        """See `ARRunner`."""
        return self._detokenize(token_ids)

    def close(self, seq: EngineSequence) -> None:
        """Drop the prompt."""
        seq.state = None
