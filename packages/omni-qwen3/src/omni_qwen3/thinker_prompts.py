"""The requests of a Thinker: what both engines' runners do with prompts, tokens and replies.

Knows prompts with media and what the Talker is conditioned on. Knows nothing of layers, batching or
where weights lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from omni_core.engine.base import KVSpec
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.text.runner import TextRunner
from omni_core.types import IntArray
from omni_qwen3.config import OmniConfig
from omni_qwen3.payloads import Conditioning, Prepared
from omni_qwen3.prompt import Prompt, UserTurns, user_turns


@dataclass(frozen=True, slots=True)
class ThinkerInputs:
    """`EngineRequest.inputs` of this stage."""

    prepared: Prepared
    conditions: bool
    """Whether the first token is to come with what the Talker is conditioned on."""
    shares: bool = False
    """Whether the Talker may want that of a later request that shares this one's KV."""


class ThinkerPrompts(TextRunner):
    """The part of a runner that answers for requests; see `ARRunner`."""

    def __init__(
        self,
        config: OmniConfig,
        *,
        eos_token_ids: frozenset[int],
        detokenize: Callable[[list[int]], str],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`device` and `dtype` of rows."""
        decoder = config.thinker.decoder
        kv = KVSpec(
            layers=decoder.layers,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            max_len=decoder.max_len,
        )
        super().__init__(
            kv,
            decoder.vocab_size,
            eos_token_ids=eos_token_ids,
            detokenize=detokenize,
            device=device,
            dtype=dtype,
        )
        self.config = config
        accepted = config.talker.accept_hidden_layer if config.talker else decoder.layers
        self.capture_layer = None if accepted == decoder.layers else accepted - 1
        """The layer whose output the Talker is given of media rows; None for the normed last."""

    def embed(self, token_ids: IntArray | tuple[int, ...]) -> torch.Tensor:
        """Input embeddings (n, H) of some tokens."""
        raise NotImplementedError

    def open(self, seq: EngineSequence) -> None:
        """Move the prompt's media rows to the device; see `ARRunner`."""
        inputs: ThinkerInputs = seq.request.inputs
        seq.state = Prompt(
            inputs.prepared,
            self.config,
            inputs.conditions or inputs.shares,
            device=self.device,
            dtype=self.dtype,
        )

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """With the first token, if asked for: the reply's `Conditioning`. None otherwise."""
        return [self._from_states(seq) if len(seq.tokens) == 1 else None for seq in seqs]

    def conditioning(self, prepared: Prepared) -> Conditioning | None:
        """What the Talker is conditioned on, if that can be told before the prompt is computed:
        None for user turns with media, whose hidden states are wanted."""
        user = user_turns(prepared, self.config, device=self.device, dtype=self.dtype)
        return None if user.is_media.any() else self._conditioning(user)

    def _from_states(self, seq: EngineSequence) -> Conditioning | None:
        inputs: ThinkerInputs = seq.request.inputs
        prompt: Prompt = seq.state
        if not inputs.conditions or prompt.user is None:
            return None
        return self._conditioning(prompt.user)

    def _conditioning(self, user: UserTurns) -> Conditioning:
        rows = self.embed(np.concatenate([user.ids, user.assistant_ids]))
        user_rows, assistant_rows = rows.split_with_sizes([len(user.ids), len(user.assistant_ids)])
        if len(user.hidden):
            user_rows[torch.from_numpy(user.is_media).to(self.device)] = user.hidden
        conditioning = Conditioning(
            speak=True,
            user_ids=user.ids,
            user_rows=user_rows,
            user_is_media=user.is_media,
            assistant_rows=assistant_rows,
        )
        conditioning.update(cast(Conditioning, user.media_sizes))
        return conditioning
