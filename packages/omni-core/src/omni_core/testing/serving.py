"""A running pipeline for tests that are not asynchronous: started, asked, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from omni_core.pipeline import Pipeline
from omni_core.plugins import Plugins
from omni_core.types import AudioDelta, Event, Finished, FloatArray, Request, TextDelta

PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request was answered with."""

    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(e.text for e in self.events if isinstance(e, TextDelta))

    @property
    def samples(self) -> FloatArray:
        """All sound, float32 (n,)."""
        parts = [e.samples for e in self.events if isinstance(e, AudioDelta)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    @property
    def finished(self) -> Finished:
        """The last event; AssertionError if it is another."""
        last = self.events[-1]
        assert isinstance(last, Finished), last
        return last


class Served:
    """A pipeline that runs, and an event loop of its own."""

    def __init__(self, pipeline: Pipeline, runner: asyncio.Runner) -> None:
        self.pipeline = pipeline
        self._runner = runner

    def ask(self, *requests: Request) -> list[Reply]:
        """Answers of requests that are all there at once, in their order."""
        return self._runner.run(self._ask(requests))

    def leave(self, request: Request) -> list[Event]:
        """Ask, and go away at the first event."""
        return self._runner.run(self._leave(request))

    def stats(self) -> dict[str, dict[str, float]]:
        """See `Pipeline.stats`."""
        return self._runner.run(self.pipeline.stats())

    def wait_until_idle(self) -> None:
        """Until no stage holds anything; AssertionError with the numbers if that never comes."""
        until_s = time.monotonic() + PATIENCE_S
        while any(stage["running"] or stage["waiting"] for stage in self.stats().values()):
            assert time.monotonic() < until_s, self.stats()
            time.sleep(0.01)
        occupancy = self.pipeline.occupancy()
        assert (occupancy.in_flight, occupancy.queued) == (0, 0), occupancy

    async def _ask(self, requests: Sequence[Request]) -> list[Reply]:
        async def one(request: Request) -> Reply:
            return Reply(tuple([event async for event in self.pipeline.generate(request)]))

        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(*map(one, requests))

    async def _leave(self, request: Request) -> list[Event]:
        async with asyncio.timeout(PATIENCE_S):
            async with contextlib.aclosing(self.pipeline.generate(request)) as events:
                async for event in events:
                    return [event]
        return []


@contextlib.contextmanager
def serving(
    checkpoint: str, plugins: Plugins, on_progress: Callable[[str, str], None] | None = None
) -> Iterator[Served]:
    """Start the pipeline of a checkpoint on the CPU, in float32 and with nothing compiled; stop it
    at the end."""
    with asyncio.Runner() as runner:
        pipeline = Pipeline.load(
            checkpoint,
            plugins=plugins,
            device="cpu",
            dtype="float32",
            compile="off",
            on_progress=on_progress,
        )
        runner.run(pipeline.__aenter__())
        try:
            yield Served(pipeline, runner)
        finally:
            runner.run(pipeline.__aexit__(None, None, None))
