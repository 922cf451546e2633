"""Who waits and who runs, in order of arrival: admission, retraction and the end of sequences.

Knows requests, rows, pages and the runner's state of a sequence. Knows nothing of steps: which rows
are computed together, and when, is the planner's.

All that run arrived before all that wait: admission takes the first that waits, retraction the last
that runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from omni_core.engine.base import ARRunner, EngineRequest, RequestFailedError
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.engine.torch_engine.paged import PagedSequence
from omni_core.engine.torch_engine.plan import StepPlan
from omni_core.engine.torch_engine.sharing import PrefixSharing
from omni_core.errors import OmniError


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A request before admission, with the chunks that came for it, or a retracted sequence."""

    request: EngineRequest
    arrived_s: float
    chunks: list[Any] = field(default_factory=list)
    retracted: PagedSequence | None = None


class Residents:
    """The sequences of one engine."""

    def __init__(
        self,
        runner: ARRunner,
        memory: KVMemory,
        sharing: PrefixSharing,
        *,
        pages_for: Callable[[int], int],
        seat: Callable[[PagedSequence], None],
        coalesce_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`seat` prepares the sampling state of the row that a sequence has just got."""
        self._runner = runner
        self._memory = memory
        self._sharing = sharing
        self._pages_for = pages_for
        self._seat = seat
        self._coalesce_s = coalesce_s
        self._clock = clock
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self.running: dict[str, PagedSequence] = {}
        """The oldest first."""
        self.steady: StepPlan | None = None
        """The step that all who run take again, until somebody comes or goes; the planner sets it
        when each only needs its decode row."""
        self.prompt_tokens = 0
        self.retractions = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self.running

    @property
    def waiting(self) -> int:
        """Requests and retracted sequences that hold no memory."""
        return len(self._waiting)

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._waiting[request.request_id] = _Waiting(request=request, arrived_s=self._clock())

    def feed(self, request_id: str, chunk: Any) -> None:
        """Give a chunk to the runner, or keep it until the request is opened."""
        waiting = self._waiting.get(request_id)
        active = waiting.retracted if waiting else self.running.get(request_id)
        if active is not None:
            self._runner.feed(active.seq, chunk)
        elif waiting is not None:
            waiting.chunks.append(chunk)

    def admissible(self) -> bool:
        """Whether the first that waits may run now: there is a row, memory for its rows so far
        beside what those that run still need, and nothing to hold it for."""
        if not self._waiting or not self._memory.has_row or self.held_s() > 0:
            return False
        first = next(iter(self._waiting.values()))
        if not self.running:
            return True
        tokens = first.retracted.seq.tokens if first.retracted else []
        needed = self._pages_for(first.request.prompt_len + max(len(tokens), 1))
        missing = needed + self._claimed_pages() - self._memory.available
        return missing <= 0 or missing <= self._sharing.pages_in_use(first.request, tokens)

    def held_s(self) -> float:
        """How much longer a lone prompt is held for company, while nothing runs; 0 for not held."""
        if not self._coalesce_s or self.running or len(self._waiting) != 1:
            return 0.0
        [lone] = self._waiting.values()
        if lone.retracted:
            return 0.0
        return max(0.0, lone.arrived_s + self._coalesce_s - self._clock())

    def admit(self) -> None:
        """Admit in order as long as the first may run; RequestFailedError as `Engine.step`."""
        while self.admissible():
            _, first = self._waiting.popitem(last=False)
            if first.retracted is None:
                self._open(first)
            else:
                self._enter(first.retracted)
                self._runner.resume(first.retracted.seq)

    def retract_newest(self) -> PagedSequence:
        """Take row and pages from the sequence that arrived last; it waits first in line."""
        request_id, active = self.running.popitem()
        self._leave(active)
        active.seq.row, active.seq.computed, active.retracted = -1, 0, True
        self._waiting[request_id] = _Waiting(
            request=active.seq.request, arrived_s=0.0, retracted=active
        )
        self._waiting.move_to_end(request_id, last=False)
        self.retractions += 1
        return active

    def end(self, request_id: str) -> None:
        """Free everything of a sequence or request; unknown ids are ignored."""
        waiting = self._waiting.pop(request_id, None)
        active = waiting.retracted if waiting else self.running.pop(request_id, None)
        if active is None:
            return
        if active.kv is not None:
            self._leave(active)
        self._runner.close(active.seq)

    def _claimed_pages(self) -> int:
        """Pages those that run will take for the rows they have, and for the next of each."""
        return sum(
            max(0, self._pages_for(a.known_rows + 2) - len(a.kv.pages))
            for a in self.running.values()
            if a.kv is not None
        )

    def _open(self, waiting: _Waiting) -> None:
        active = PagedSequence.of(
            waiting.request,
            eos_token_ids=self._runner.eos_token_ids,
            max_len=self._runner.kv.max_len,
            text=self._runner.text,
        )
        self._enter(active)
        seq = active.seq
        try:
            self._runner.open(seq)
        except OmniError as exc:
            del self.running[seq.request_id]
            self._leave(active)
            raise RequestFailedError(seq.request_id, exc) from exc
        self.prompt_tokens += seq.request.prompt_len
        try:
            for chunk in waiting.chunks:
                self._runner.feed(seq, chunk)
        except OmniError as exc:
            self.end(seq.request_id)
            raise RequestFailedError(seq.request_id, exc) from exc

    def _enter(self, active: PagedSequence) -> None:
        self.steady = None
        active.kv = self._memory.open()
        active.seq.row = active.kv.row
        self._seat(active)
        self.running[active.seq.request_id] = active

    def _leave(self, active: PagedSequence) -> None:
        if active.kv is None:
            raise ValueError(f"request {active.seq.request_id!r} does not run")
        self.steady = None
        self._sharing.publish(active)
        self._memory.close(active.kv)
        active.kv = None
