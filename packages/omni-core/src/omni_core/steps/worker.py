"""`python -m omni_core.steps.worker RESULT.so`: compile the step that stdin's first line asks for.

The only module that imports the compilers of torch. It runs in a process and session of its own,
one at a time for each cache directory, and leaves when its stdin closes, which it does when the
process that started it is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch

from omni_core.errors import StageError
from omni_core.steps.aoti import Library
from omni_core.steps.base import Program
from omni_core.steps.describe import TensorDoc
from omni_core.steps.request import Request

SCRATCH: Final = "compiling-"
OTHER_SIZE: Final = 3
"""None that a step is compiled with."""
INDUCTOR: Final = {
    "aot_inductor.package_constants_in_so": False,  # stages give their own, without a copy
    "aot_inductor.compile_wrapper_opt_level": "O0",  # a third of the time, and no slower to call
    "aot_inductor.precompile_headers": False,  # 140 MB each on disk, to compile a file or two
    "compile_threads": 1,
    "joint_graph_constant_folding": False,  # would bake in equal numbers, and ours mean nothing
}


def main(arguments: Sequence[str]) -> int:
    """Compile into the given file."""
    [result] = map(Path, arguments)
    content = sys.stdin.buffer.readline()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    for left in result.parent.glob(f"{SCRATCH}*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=SCRATCH) as place:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = place
        os.replace(compiled(msgspec.json.decode(content, type=Request), place), result)
    return 0


def _leave_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGKILL)  # with the C++ compiler it may be waiting for


class Traced(torch.nn.Module):
    """A program as the module that `torch.export` wants: its weights as buffers, but small ones as
    the first inputs, since as constants their values here would become code."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._program = request.program
        for number, doc in enumerate(request.program.weights):
            if not doc.is_small:
                self.register_buffer(f"weight{number}", doc.empty())

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One call of the step."""
        rest, large = iter(tensors), self.buffers()
        weights = [next(rest if doc.is_small else large) for doc in self._program.weights]
        result: tuple[torch.Tensor, ...] = self._program.build(weights)(*rest)
        return result


def compiled(request: Request, place: str) -> Path:
    """The shared library made of a request, in a scratch directory."""
    from torch._inductor import aoti_compile_and_package  # seconds, so not before it is our turn

    torch.set_num_threads(request.threads)
    names = {name for dims in request.dynamic for name in dims.values()}
    sizes = {name: torch.export.Dim(name, min=1) for name in names}
    shapes = tuple({d: sizes[name] for d, name in dims.items()} or None for dims in request.dynamic)
    module, weights = Traced(request), [doc.empty() for doc in request.program.weights]
    for weight in weights:
        weight.fill_(weight.is_floating_point())
    small = [weight for weight in weights if TensorDoc.of(weight).is_small]
    call = (*small, *(doc.empty() for doc in request.tensors))
    shapes = ((None,) * len(small)) + shapes
    with torch.no_grad():
        exported = torch.export.export(module, call, dynamic_shapes={"tensors": shapes})
        _erase_metadata_checks(exported.graph_module)
        package = aoti_compile_and_package(
            exported, package_path=f"{place}/step.pt2", inductor_configs=dict(INDUCTOR)
        )
        with zipfile.ZipFile(package) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".so")]
            library = Path(archive.extract(name, place))
        _try_sizes(request.program.build(weights), Library(library, weights), request)
    return library


def _erase_metadata_checks(module: torch.fx.GraphModule) -> None:
    """Drop what export puts before every `to`: checking a size, the compiler would fix it."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()


def _try_sizes(program: Program, library: Library, request: Request) -> None:
    """StageError if the compiler has taken the size of a dynamic dimension for a constant."""
    for size in (1, OTHER_SIZE):
        pairs = zip(request.tensors, request.dynamic, strict=True)
        call = tuple(_filled(doc, dims, size) for doc, dims in pairs)
        shapes = [result.shape for result in program(*call)]
        if [result.shape for result in library(call)] != shapes:
            raise StageError("it was compiled for one size only")


def _filled(doc: TensorDoc, dims: dict[int, str], size: int) -> torch.Tensor:
    """Ones, or zeros where they may be indices, with this size in every dynamic dimension."""
    shape = [size if dim in dims else still for dim, still in enumerate(doc.shape)]
    tensor = torch.zeros(shape, dtype=doc.empty().dtype)
    return tensor.fill_(tensor.is_floating_point())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
