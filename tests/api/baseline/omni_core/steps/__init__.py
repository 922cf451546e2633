__all__ = ['Program', 'Step', 'StepBank', 'build_bank']

class StepBank:

    def __init__(self, *, maker: LibraryMaker | None=None, graphs: Graphs | None=None, waits: bool=False, report: Callable[[str], None]=lambda text: None) -> None:
        ...

    @classmethod
    def eager(cls) -> StepBank:
        ...

    def step(self, name: str, program: Program, *, dynamic: Dynamic, pools: int=0, examples: Callable[[], Iterable[Tensors]]=tuple) -> Step:
        ...

    @property
    def batches(self) -> tuple[int, ...]:
        ...

    def stats(self) -> dict[str, float]:
        ...

def build_bank(ctx: StageContext) -> StepBank:
    ...

class Program(Protocol):

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        ...

class Step(Protocol):

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        ...
