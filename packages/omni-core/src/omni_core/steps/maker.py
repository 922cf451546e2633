"""The thread that finds, compiles and loads the libraries of one stage's steps.

Knows the order of things and what to do when one fails. Knows nothing of when a step is hot.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from omni_core.errors import StageError
from omni_core.steps.aoti import Libraries, Library
from omni_core.steps.base import Spec
from omni_core.steps.compiled import Library as AnyLibrary
from omni_core.steps.describe import TensorDoc, describe
from omni_core.steps.request import Request

log = logging.getLogger("omni.steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    spec: Spec
    call: tuple[TensorDoc, ...]
    done: Callable[[AnyLibrary], None]
    may_compile: bool


class LibraryMaker:
    """`Maker` over a cache of libraries. After one failure it compiles no more."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = False
        self.compiled = 0
        """Libraries made, not found."""

    def find(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[AnyLibrary], None]
    ) -> None:
        """See `Maker`."""
        self._put(_Job(spec=spec, call=call, done=done, may_compile=False))

    def make(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[AnyLibrary], None]
    ) -> None:
        """See `Maker`."""
        self._put(_Job(spec=spec, call=call, done=done, may_compile=True))

    def make_now(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[AnyLibrary], None]
    ) -> None:
        """As `make`, on the caller's thread."""
        self._work(_Job(spec=spec, call=call, done=done, may_compile=True))

    def _put(self, job: _Job) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._work(self._jobs.get())

    def _work(self, job: _Job) -> None:
        if self._failed:
            return
        try:
            library = self._library(job)
        except (StageError, RuntimeError, OSError) as error:
            self._failed = True
            log.warning(
                "step %s cannot be compiled, so steps stay eager; --compile off silences this: %s",
                job.spec.name,
                error,
            )
            return
        if library is not None:
            job.done(library)

    def _library(self, job: _Job) -> Library | None:
        program, weights = describe(job.spec.program)
        request = Request.of(program, job.call, job.spec.dynamic)
        path = self._libraries.find(request)
        if path is None:
            if not job.may_compile:
                return None
            path = self._libraries.make(request)
            self.compiled += 1
        return Library(path, weights)
