"""The stand-ins for what SGLang imports on a host without CUDA; each test in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PREPARE = "from omni_core.engine.sglang_engine.bootstrap import prepare; prepare()\n"
KERNELS = """
import triton, triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

@triton.autotune(configs=[triton.Config({"n": 1}, num_warps=4)], key=["n"])
@triton.jit
def kernel(x, n: tl.constexpr): ...

assert not isinstance(kernel, JITFunction)
assert (triton.cdiv(7, 2), triton.next_power_of_2(9)) == (4, 16)
try:
    kernel[(1,)](0, n=2)
except NotImplementedError as error:
    print(error)
"""
NAMES = """
import importlib.util, sgl_kernel
from sgl_kernel import build_tree_cpu

assert importlib.util.find_spec("sgl_kernel")
for missing in ("from sgl_kernel import silu", "import sgl_kernel.scalar_type"):
    try:
        exec(missing)
    except ImportError:
        continue
    raise AssertionError(missing)
try:
    build_tree_cpu(1)
except NotImplementedError as error:
    print(error)
"""
SETTINGS = """
import os
from torch.utils._triton import has_triton_package

print(os.environ["SGLANG_USE_CPU_ENGINE"], has_triton_package())
"""
FOR_CUDA = """
import os, sys, torch
from omni_core.engine.sglang_engine import bootstrap

torch.version.cuda = "13.0"
modules, finders = {*sys.modules}, [*sys.meta_path]
bootstrap.prepare()
print({*sys.modules} == modules, sys.meta_path == finders, bootstrap.CPU_SWITCH in os.environ)
"""


def run(code: str, *path: Path) -> list[str]:
    """The lines that a process prints that runs this, with `path` to import from as well."""
    known = filter(None, [*map(str, path), os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(known)}
    env.pop("SGLANG_USE_CPU_ENGINE", None)
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, env=env)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


needs_stand_ins = pytest.mark.skipif(
    torch.version.cuda is not None or any(map(find_spec, ("triton", "sgl_kernel"))),
    reason="nothing stands in for what is installed here",
)


@needs_stand_ins
def test_what_is_imported_can_be_named_and_not_called() -> None:
    assert run(PREPARE * 2 + KERNELS + NAMES + SETTINGS) == [
        "kernel was launched, and triton is not here",
        "sgl_kernel.build_tree_cpu was called, and sgl_kernel is not here",
        "1 False",
    ]


def test_what_is_installed_is_never_hidden(tmp_path: Path) -> None:
    for name in ("sgl_kernel", "triton"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("real = True")
    code = PREPARE + "import sgl_kernel, triton; print(sgl_kernel.real, triton.real)"
    assert run(code, tmp_path) == ["True True"]


def test_beside_a_torch_for_cuda_nothing_is_done() -> None:
    assert run(FOR_CUDA) == ["True True False"]


@pytest.mark.sglang
def test_sglang_can_be_imported() -> None:
    imports = "import torchvision.transforms, sglang.srt.managers.scheduler as scheduler\n"
    assert run(PREPARE + imports + "print(scheduler.Scheduler.__name__)") == ["Scheduler"]
