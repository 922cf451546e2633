"""What must be so before `import sglang`, and stand-ins on a host without CUDA.

Knows import machinery, and what of three libraries upstream touches while it is imported. Knows
nothing of engines or models. Where torch is built for CUDA nothing stands in for anything, and a
library that is installed is never hidden by its stand-in.

Anywhere, upstream is told that our models are not among its own: it would import all of these,
which takes seconds and a warning for each that it cannot.

| imported at module top | why it fails on a CPU | what stands in |
|---|---|---|
| `torchvision` | its operators are linked against CUDA, and it describes two of them | schemas |
| `sgl_kernel` | there is no build without CUDA | names of CPU kernels, which cannot be called |
| `triton` | torch for CPUs comes without it | kernels can be defined and not launched |
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import torch
from torch.utils import _triton as torch_on_triton

CPU_SWITCH: Final = "SGLANG_USE_CPU_ENGINE"
"""Upstream reads this variable while it is imported."""
MODELS_SWITCH: Final = "SGLANG_EXTERNAL_MODEL_PACKAGE"
"""And this one: where models lie that are not its own. With it, those of its own can wait."""
_VISION_OPERATORS: Final = ("nms", "qnms")
_VISION_SCHEMA: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def prepare() -> None:
    """Make `import sglang` work in this process, and quick. Call it before the first import of
    upstream; later it does nothing."""
    if "sglang" in sys.modules:
        return
    os.environ.setdefault(MODELS_SWITCH, "omni_core.engine.sglang_engine.no_models")
    if torch.version.cuda is None:
        _stand_in()


def _stand_in() -> None:
    """Of a torch without CUDA."""
    os.environ[CPU_SWITCH] = "1"
    logging.getLogger("sglang").setLevel(logging.ERROR)  # it warns of all that a CPU has not
    _describe_vision_operators()
    if not _is_there("sgl_kernel"):
        sys.modules["sgl_kernel"] = _KernelNames.module()
    if not _is_there("triton"):
        torch_on_triton.has_triton_package()  # which torch remembers: it must not meet the stand-in
        sys.meta_path.append(_TritonFinder())


def _is_there(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _describe_vision_operators() -> None:
    """Name the schemas of the operators that torchvision describes, if its library cannot."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or "torchvision" in sys.modules:
        return
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))  # type: ignore[no-untyped-call]
    except OSError:
        for name in _VISION_OPERATORS:
            torch.library.define(f"torchvision::{name}", _VISION_SCHEMA)


class _KernelNames(ModuleType):
    """`sgl_kernel` without kernels. Upstream has a way around every name that is missing but for
    those of CPU kernels, which it imports whether or not it will call them."""

    @classmethod
    def module(cls) -> _KernelNames:
        module = cls("sgl_kernel")
        module.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", loader=None)
        return module

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if not name.endswith("_cpu"):
            raise AttributeError(name)

        def missing(*args: object, **kwargs: object) -> NoReturn:
            raise NotImplementedError(f"sgl_kernel.{name} was called, and sgl_kernel is not here")

        return missing


class _TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `triton` and everything in it, after all other finders have found nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "triton":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Triton(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is no code to run."""


class _Type:
    """A type of triton: torch compares with them, kernels are configured with them."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Whatever the type takes."""


class _Triton(ModuleType):
    """A module of triton, or a function in one: called with a function, it decorates it; called
    with anything else, it is the decorator that was asked for."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "driver":  # there is none: upstream asks for its device
            raise AttributeError(name)
        if name[0].isupper():
            return type(name, (_Type,), {})
        return _Triton(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Kernel(args[0]) if len(args) == 1 and callable(args[0]) else self

    @staticmethod
    def cdiv(count: int, size: int) -> int:
        """Blocks of `size` that hold `count`; called on the host as well."""
        return -(-count // size)

    @staticmethod
    def next_power_of_2(count: int) -> int:
        """The least power of two that is not below `count`; called on the host as well."""
        return 1 << max(count - 1, 0).bit_length()


class _Kernel:
    """A kernel that was defined."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.__name__ = getattr(function, "__name__", "kernel")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} was launched, and triton is not here")

    __getitem__ = __call__  # by a grid, which comes before the arguments
