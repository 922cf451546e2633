"""Requests that were aborted and that stages still hold.

Knows ids, stages and time. Knows nothing of why a request was aborted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from omni_core.types import Modality

MOST_REMEMBERED: Final = 10_000
"""Of stages that never answer, the oldest aborts are forgotten beyond this many."""


class Observer(Protocol):
    """What the owner of a pipeline is told as it happens, on the event loop."""

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        """A request for these has its place in the stages, after so long in the queue."""

    def refused(self, reason: str) -> None:
        """A request was not let in, or lost its place in the queue."""

    def aborted(self, reason: str) -> None:
        """A request ended before its reply did: "disconnect", or the code of the error."""

    def released(self, stage: str, after_s: float) -> None:
        """A stage holds nothing of an aborted request any more, so long after the abort was
        sent."""

    def ready(self, process: str, stages: Sequence[str]) -> None:
        """A process serves its stages from now on: the first of its place, or a successor."""

    def lost(self, process: str, stages: Sequence[str], cause: str) -> None:
        """A process that was there is no more: "exit", "crash", "hang", or another `last_death` of
        /health."""


class Silent:
    """An `Observer` that looks away."""

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        """See `Observer.admitted`."""

    def refused(self, reason: str) -> None:
        """See `Observer.refused`."""

    def aborted(self, reason: str) -> None:
        """See `Observer.aborted`."""

    def released(self, stage: str, after_s: float) -> None:
        """See `Observer.released`."""

    def ready(self, process: str, stages: Sequence[str]) -> None:
        """See `Observer.ready`."""

    def lost(self, process: str, stages: Sequence[str], cause: str) -> None:
        """See `Observer.lost`."""


@dataclass(frozen=True, slots=True)
class _Abort:
    sent_s: float
    owing: dict[str, str]
    """{stage: process} of those that have not answered."""


class Aborts:
    """The books of what was aborted, until each stage has said that it let go."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._aborts: OrderedDict[str, _Abort] = OrderedDict()

    def __len__(self) -> int:
        """Aborted requests that some stage still holds."""
        return len(self._aborts)

    def sent(self, request_id: str, owing: Mapping[str, str]) -> None:
        """The abort has left for these stages, {stage: process}."""
        if owing:
            self._aborts[request_id] = _Abort(self._clock(), dict(owing))
        if len(self._aborts) > MOST_REMEMBERED:
            self._aborts.popitem(last=False)

    def released(self, request_id: str, stage: str) -> float | None:
        """A stage has let go: seconds since the abort was sent; None if nobody waited for it."""
        abort = self._aborts.get(request_id)
        if abort is None or abort.owing.pop(stage, None) is None:
            return None
        if not abort.owing:
            del self._aborts[request_id]
        return self._clock() - abort.sent_s

    def lost(self, process: str) -> None:
        """A process has died, and with it all that it held."""
        for request_id, abort in list(self._aborts.items()):
            for stage in [name for name, home in abort.owing.items() if home == process]:
                self.released(request_id, stage)
