"""New weights into the tensors of a model that runs: the parts of a checkpoint made again from
another one, and copied into place.

Knows parts and tensors. Knows nothing of what they are for, nor of engines or caches. Whoever holds
a tensor (a compiled step, a recorded graph) has the new numbers without being told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from omni_core.checkpoint.weights import Checkpoint, Part, Weights, open_weights
from omni_core.specs import StageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsLoader:
    """`WeightLoader` of a stage."""

    parts: Sequence[Part[Any]]
    prefixes: tuple[str, ...]
    """Of the tensors that the parts are made of."""
    device: str
    dtype: str
    after: Callable[[], None]
    """Renew or drop what was computed with the old weights."""
    folder: str = ""
    """Of the tensors' files within the checkpoint."""

    def check(self, model_path: str) -> None:
        """See `WeightLoader`: everything is made on the meta device, for which nothing is read."""
        with Checkpoint(str(Path(model_path) / self.folder)) as checkpoint:
            weights = self._open(checkpoint, "meta")
            for part in self.parts:
                part.make(weights)
            weights.finish()

    @torch.inference_mode()
    def load(self, model_path: str) -> None:
        """See `WeightLoader`. Takes the memory of the largest part beside the model's."""
        try:
            with Checkpoint(str(Path(model_path) / self.folder)) as checkpoint:
                weights = self._open(checkpoint, self.device)
                for part in self.parts:
                    copy_into(part.made, part.make(weights))
                weights.finish()
        finally:
            self.after()
            if torch.cuda.is_available():
                torch.cuda.synchronize()

    def _open(self, checkpoint: Checkpoint, device: str) -> Weights:
        return open_weights(
            checkpoint, self.prefixes, device=device, dtype=self.dtype, report=lambda text: None
        )


def loader(
    ctx: StageContext,
    parts: Sequence[Part[Any]],
    prefixes: tuple[str, ...],
    after: Callable[[], None] = lambda: None,
    folder: str = "",
) -> PartsLoader:
    """The loader of a stage that was built of these parts."""
    return PartsLoader(
        parts=parts,
        prefixes=prefixes,
        device=ctx.device,
        dtype=ctx.dtype,
        after=after,
        folder=folder,
    )


def copy_into(held: object, made: object) -> None:
    """Give every tensor of `held` the numbers of its counterpart in `made`, which was made in the
    same way; ValueError where they differ in anything else."""
    if type(held) is not type(made):
        raise ValueError(f"{type(held).__name__} cannot become {type(made).__name__}")
    if isinstance(held, torch.Tensor) and isinstance(made, torch.Tensor):
        if held.shape != made.shape:
            raise ValueError(f"a tensor {tuple(held.shape)} cannot become {tuple(made.shape)}")
        held.copy_(made)
    elif is_dataclass(held):
        for field in fields(held):
            copy_into(getattr(held, field.name), getattr(made, field.name))
    elif isinstance(held, tuple) and isinstance(made, tuple):
        if len(held) != len(made):
            raise ValueError(f"{len(held)} things cannot become {len(made)}")
        for one, other in zip(held, made, strict=True):
            copy_into(one, other)
    elif held != made:
        raise ValueError(f"{held!r} cannot become {made!r} in a model that runs")
