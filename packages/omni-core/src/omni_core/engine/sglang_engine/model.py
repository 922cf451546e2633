"""What a model package gives this engine: an upstream model class, and who answers for requests.

Knows neither upstream nor any model. The runner keeps the request side of `ARRunner`; the module
takes the place of its `forward` and `logits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from omni_core.engine.base import KVSpec, Segment, Sequence
from omni_core.specs import Ref, WeightLoader


class SglangRunner(Protocol):
    """Requests of a model under this engine; methods as in `ARRunner` where they are not described.

    All methods run on the engine's thread, under inference mode.
    """

    kv: KVSpec
    vocab_size: int
    eos_token_ids: frozenset[int]
    suppress: torch.Tensor | None
    """Bool (vocab,), on the device of the module: ids never sampled; None for none."""
    feedback: bool
    prefix_cache: bool

    def attach(self, module: Any, *, rows: int, slots: int) -> None:
        """Called once, with the loaded module, before anything else. `Sequence.row` will be below
        `rows`, and where KV lies below `slots`."""

    def begin(self, segments: list[Segment], *, decode: bool) -> None:
        """The next forward of the module computes these rows, in this order; with `decode`, one row
        of each, and upstream may replay a recorded graph of it instead of calling the module: what
        a row needs must be in tables by row when this returns."""

    def hidden(self) -> torch.Tensor:
        """(B, ...): what `collect` is given of the last row of each segment of the last forward."""

    def open(self, seq: Sequence) -> None:
        """Build `seq.state` before the sequence gets a row; see `ARRunner`."""

    def resume(self, seq: Sequence) -> None:
        """The sequence was retracted: all its rows will be asked for again, the newest token's too,
        once `ready` says that its input exists."""

    def restore(self, seq: Sequence, start: int, stop: int, slots: torch.Tensor) -> None:
        """Rows `start`..`stop` will not be computed, their KV lies in `slots` (stop - start,): what
        the module has put beside them there is theirs as well."""

    def feed(self, seq: Sequence, chunk: Any) -> None:
        """See `ARRunner`."""

    def ready(self, seq: Sequence) -> bool:
        """Whether the input of the row after the newest token exists, or of the last row of an open
        prompt. Asked only with `feedback`, before each decode step and before a retracted sequence
        is admitted again."""

    def collect(
        self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """See `ARRunner`."""

    def text(self, token_ids: list[int]) -> str:
        """See `ARRunner`."""

    def close(self, seq: Sequence) -> None:
        """See `ARRunner`."""


R = TypeVar("R", bound=SglangRunner, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangModel(Generic[R]):
    """A model as an upstream engine loads it."""

    runner: R
    module: type[nn.Module]
    """An upstream model class: `__init__(config, quant_config, prefix)`,
    `forward(input_ids, positions, forward_batch)` and `load_weights(weights)`. A row whose id is
    negative is not a token's."""
    config: Mapping[str, Any]
    """The config.json upstream reads, of a `model_type` that transformers knows."""
    tensors: tuple[str, ...]
    """Prefixes of the tensors `load_weights` wants; it is given whole files, with all names as they
    are in the checkpoint."""
    load: Ref | None = None
    """(StageContext) -> this model, for the processes of the other ranks; None if it cannot be
    split. The runner then calls the module in its `forward` alone: all ranks take part in that."""
    weights: WeightLoader | None = None
    """Compares a checkpoint with all of the model, and loads into the runner what is its own; the
    module loads its tensors as it did at the start. None if new weights need a new start."""
    inputs: Callable[..., Any] = dict
    """Builds `EngineRequest.inputs` from its fields, which are plain data and tensors."""
