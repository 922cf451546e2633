"""The end of a step: its tokens reach the host, and each sequence decides on its own.

Knows sequences and what was drawn for them. Knows nothing of KV, batches or the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.base import StepOutput
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.common.tokens import Draw
from omni_core.engine.common.transfer import upload

Collect: TypeAlias = Callable[[list[EngineSequence], torch.Tensor, list[bool]], list[Any]]
"""See `ARRunner.collect`."""
A = TypeVar("A", bound=ActiveSequence)


def learn(
    draw: Draw,
    sampled: Sequence[A],
    seqs: list[EngineSequence],
    hidden: torch.Tensor,
    collect: Collect,
    is_here: Callable[[A], bool] | None,
) -> list[StepOutput]:
    """What a step made of those who sampled in it, whose `seqs` and `hidden` (M, ...) these are.

    `is_here`, with look-ahead, says who has not ended since the launch; the others were computed
    once too often, and nothing of that is kept.
    """
    tokens, logprobs = draw.wait()
    if is_here is not None and not all(map(is_here, sampled)):
        places = [place for place, active in enumerate(sampled) if is_here(active)]
        sampled, tokens = [sampled[i] for i in places], [tokens[i] for i in places]
        logprobs = {new: logprobs[i] for new, i in enumerate(places) if i in logprobs}
        seqs, hidden = [seqs[i] for i in places], hidden[upload(places, hidden.device)]
    if not sampled:
        return []
    outputs = [active.take(token) for active, token in zip(sampled, tokens, strict=True)]
    made = collect(seqs, hidden, [output.finish_reason is not None for output in outputs])
    for output, data in zip(outputs, made, strict=True):
        output.data = data
    for place, found in logprobs.items():
        outputs[place].logprobs = found
    return outputs
