"""The requests of a Thinker: what both engines' runners do with prompts, tokens and replies.

Knows prompts with media. Knows nothing of layers, batching or where weights lie.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_core.engine.base import KVSpec
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.text.runner import TextRunner
from omni_ming.model.config import ThinkerConfig
from omni_ming.prompt import Prompt


class ThinkerPrompts(TextRunner):
    """The part of a runner that answers for requests, whose `inputs` are a `Prepared`; see
    `ARRunner`."""

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
        kv = KVSpec(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_len=config.max_len,
        )
        super().__init__(
            kv,
            config.vocab_size,
            eos_token_ids=eos_token_ids,
            detokenize=detokenize,
            device=device,
            dtype=dtype,
        )
        self.config = config

    def open(self, seq: EngineSequence) -> None:
        """Move the prompt's media rows to the device; see `ARRunner`."""
        seq.state = Prompt(seq.request.inputs, device=self.device, dtype=self.dtype)
