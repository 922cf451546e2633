"""Faster implementations of pure tensor steps, swapped in under running stages.

A stage registers its hot step once and calls it like a function. The call runs eagerly from the
first second. Meanwhile the step's bank makes something faster of it: on a CPU a library compiled in
the background (`aoti`), on a card a CUDA graph for each exact shape (`graphs`). That takes over
between two calls, once it has given the same results as the eager step on live inputs.

A step's program is a frozen dataclass: its fields are tensors (the weights), plain values and other
such dataclasses, lists or tuples of them; its `__call__` takes tensors and returns a tuple of
tensors, without looking at their values. The class must be importable by name, since another
process compiles it; weights do not travel, only their shapes.

```python
@dataclass(frozen=True, slots=True)
class Scale:
    weight: torch.Tensor

    def __call__(self, x: torch.Tensor, pool: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * self.weight + pool[0],)

bank = build_bank(ctx)
scale = bank.step("scale", Scale(weight), dynamic=({0: "batch"}, {0: "slots"}), pools=1)
(y,) = scale(x, pool)
```
"""

from omni_core.steps.bank import StepBank, build_bank
from omni_core.steps.base import Program, Step

__all__ = ["Program", "Step", "StepBank", "build_bank"]
