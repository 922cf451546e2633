"""The request side of runners that sample text: prompts in, tokens out, and nothing comes between.

Knows what an `ARRunner` and a `SglangRunner` are asked about such requests. Knows nothing of
layers, media or what a reply is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omni_core.engine.base import KVSpec, Sequence
from omni_core.engine.grammar import Grammars
from omni_core.text.detokenize import TokenBytes

if TYPE_CHECKING:
    import torch


class TextRunner:
    """The part of a runner that answers for requests; who subclasses it opens them."""

    suppress: torch.Tensor | None = None
    feedback = False
    prefix_cache = True

    def __init__(
        self,
        kv: KVSpec,
        vocab_size: int,
        *,
        eos_token_ids: frozenset[int],
        detokenize: Callable[[list[int]], str],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`device` and `dtype` of rows."""
        self.kv = kv
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.device, self.dtype = device, dtype
        self._detokenize = detokenize

    def resume(self, seq: Sequence) -> None:
        """The prompt is still there, and so are the tokens."""

    def keep(self, seq: Sequence, start: int, stop: int) -> Any:
        """Nothing but KV is shared."""
        return None

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None:
        """See `keep`."""

    def feed(self, seq: Sequence, chunk: Any) -> None:
        """Nothing streams in."""

    def ready(self, seq: Sequence) -> bool:
        """Always: the next row is the sampled token's embedding."""
        return True

    def collect(
        self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """Nothing beside the token."""
        return [None] * len(seqs)

    def text(self, token_ids: list[int]) -> str:
        """See `ARRunner`."""
        return self._detokenize(token_ids)

    def close(self, seq: Sequence) -> None:
        """Drop the prompt."""
        seq.state = None

    def grammars(self, model_path: str) -> Grammars:
        """What holds replies to grammars, over the text of the checkpoint's tokens, which is read
        when it is first needed."""

        def spelling() -> Callable[[int], bytes]:
            return TokenBytes(model_path).__getitem__

        return Grammars(spelling, self.vocab_size, self.eos_token_ids)
