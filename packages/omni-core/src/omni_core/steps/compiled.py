"""A step on a CPU: eager, until a library compiled for it has proved itself.

Knows when a step is hot, when a library may take over and when it may not. Knows nothing of how one
is made: a `Maker` does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from omni_core.steps.base import Spec, Tensors
from omni_core.steps.check import difference
from omni_core.steps.describe import TensorDoc

HOT_EAGER_S: Final = 3.0
"""Eager work after which compiling, about 25 s of one core, is worth its while."""
CHECKED_CALLS: Final = 16
"""Calls on live inputs that a library must do as the program does before its results are used."""
CHECKED_BYTES: Final = 16 * 1024**2
"""Pools up to this size are compared as well; a copy of larger ones would be felt."""
KNOWN_SHAPES: Final = 4096

log = logging.getLogger("omni.steps")


class Library(Protocol):
    """A compiled step."""

    def __call__(self, tensors: Tensors) -> Tensors:
        """The results of one call."""


class Maker(Protocol):
    """Makes libraries on a thread of its own."""

    def find(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[Library], None]
    ) -> None:
        """Load the library for calls like this one, if some process has made it before."""

    def make(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[Library], None]
    ) -> None:
        """Load it, and compile it if need be."""

    def make_now(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[Library], None]
    ) -> None:
        """As `make`, on the caller's thread."""


@dataclass(slots=True)
class _Proof:
    """How many more calls must be checked."""

    calls_left: int = CHECKED_CALLS


class CompiledStep:
    """A step whose calls go to a library once there is one, it fits, and it is proved.

    A library serves every size of the dynamic dimensions, so it is proved for each set of those
    that are 1: that is where compilers take other ways.
    """

    def __init__(
        self, spec: Spec, maker: Maker, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._spec = spec
        self._maker = maker
        self._clock = clock
        self._eager_s = 0.0
        self._call: tuple[TensorDoc, ...] = ()
        """The first one."""
        self._dtypes: tuple[torch.dtype, ...] = ()
        self._asked = self._refused = False
        self._library: Library | None = None
        """Set by the maker's thread."""
        self._proofs: dict[tuple[bool, ...], _Proof] = {}
        self._by_shapes: dict[tuple[torch.Size, ...], _Proof | None] = {}

    @property
    def swapped(self) -> bool:
        """Whether some calls go to a library."""
        return any(proof.calls_left == 0 for proof in self._proofs.values())

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """See `Step`."""
        library = self._library
        if library is None:
            return self._warm(tensors)
        proof = self._proof(tensors)
        if proof is None:
            return self._spec.eager(tensors)
        if proof.calls_left:
            return self._checked(library, tensors, proof)
        try:
            results = library(tensors)
        except RuntimeError as error:
            self._refuse(str(error))
            return self._spec.eager(tensors)
        self._spec.counts.compiled += 1
        return results

    def make_now(self, tensors: Tensors) -> None:
        """Have the library made for calls like this one before the first of them."""
        self._asked = True
        self._meet(tensors)
        self._maker.make_now(self._spec, self._call, self._take)

    def _take(self, library: Library) -> None:
        """From the next call on; called by the maker, on its thread."""
        self._library = library

    def _meet(self, tensors: Tensors) -> None:
        self._call = tuple(map(TensorDoc.of, tensors))
        self._dtypes = tuple(tensor.dtype for tensor in tensors)

    def _warm(self, tensors: Tensors) -> Tensors:
        started_s = self._clock()
        results = self._spec.eager(tensors)
        self._eager_s += self._clock() - started_s
        if not self._call:
            self._meet(tensors)
            self._maker.find(self._spec, self._call, self._take)
        elif self._eager_s >= HOT_EAGER_S and not self._asked and not self._refused:
            self._asked = True
            self._maker.make(self._spec, self._call, self._take)
        return results

    def _proof(self, tensors: Tensors) -> _Proof | None:
        """None if the library was not compiled for such tensors."""
        for tensor, dtype in zip(tensors, self._dtypes, strict=True):
            if tensor.dtype is not dtype or not tensor.is_contiguous():
                return None
        shapes = tuple(tensor.shape for tensor in tensors)
        try:
            return self._by_shapes[shapes]
        except KeyError:
            if len(self._by_shapes) >= KNOWN_SHAPES:
                self._by_shapes.clear()
            return self._by_shapes.setdefault(shapes, self._proof_of_new(tensors))

    def _proof_of_new(self, tensors: Tensors) -> _Proof | None:
        sizes: dict[str, int] = {}
        for tensor, doc, dims in zip(tensors, self._call, self._spec.dynamic, strict=True):
            if tensor.ndim != len(doc.shape):
                return None
            for dim, (size, compiled) in enumerate(zip(tensor.shape, doc.shape, strict=True)):
                if size != (sizes.setdefault(dims[dim], size) if dim in dims else compiled):
                    return None
        if 0 in sizes.values():
            return None
        return self._proofs.setdefault(tuple(size == 1 for size in sizes.values()), _Proof())

    def _checked(self, library: Library, tensors: Tensors, proof: _Proof) -> Tensors:
        """Call both, the program last, so that what it writes to the pools stays."""
        try:
            results = library(tensors)
        except RuntimeError as error:
            self._refuse(str(error))
            return self._spec.eager(tensors)
        pools = [p for p in tensors[len(tensors) - self._spec.pools :] if p.nbytes <= CHECKED_BYTES]
        written = [pool.clone() for pool in pools]
        expected = self._spec.eager(tensors)
        if problem := difference((*results, *written), (*expected, *pools)):
            self._refuse(problem)
        proof.calls_left -= 1
        return expected

    def _refuse(self, problem: str) -> None:
        log.warning(
            "step %s stays eager: its compiled form is wrong (%s)", self._spec.name, problem
        )
        self._library, self._refused = None, True
        self._proofs.clear()
        self._by_shapes.clear()
