"""Which rows the next step computes, and who gives up memory for them.

Knows the order of service and the limits of a step. Knows nothing of tensors, sampling or models.

Decode rows come first, then prompts in order of arrival, in chunks. Pages are taken in order of
arrival as well: when there are none, the newest sequence gives up its own, so the oldest always
goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omni_core.engine.base import Segment, Sequence
from omni_core.engine.torch_engine.active import ActiveSequence
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.engine.torch_engine.residents import Residents
from omni_core.engine.torch_engine.sharing import PageId, PrefixSharing

LOOKAHEAD_DECODES = 2
"""Fewer decode rows than this are not worth a step ahead."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The rows of one step."""

    segments: list[Segment]
    decodes: list[ActiveSequence]
    """Whose single rows come first."""
    prompts: list[ActiveSequence]
    """Whose chunks follow."""
    goes_on: bool = False
    """The rows are those of the step before, each one token on."""

    @property
    def sampled(self) -> list[ActiveSequence]:
        """The sequences that sample, in the order of the segments."""
        chunks = self.segments[len(self.decodes) :]
        sampling = [a for a, s in zip(self.prompts, chunks, strict=True) if s.samples]
        return self.decodes + sampling if sampling else self.decodes


NOTHING = StepPlan([], [], [])


class Planner:
    """Plans steps for the residents of one engine."""

    def __init__(
        self,
        residents: Residents,
        memory: KVMemory,
        sharing: PrefixSharing,
        config: TorchEngineConfig,
        ready: Callable[[Sequence], bool],
    ) -> None:
        self._residents = residents
        self._memory = memory
        self._sharing = sharing
        self._config = config
        self._ready = ready
        self._steady_steps = 0
        """Steps that the residents' steady rows may still take as they are."""
        self.cut_prompts = 0

    def can_run(self) -> bool:
        """Whether a plan would hold a row for those that run now."""
        return any(a.seq.in_prefill or self._ready(a.seq) for a in self._residents.running.values())

    def plan(self, *, ahead: bool = False) -> StepPlan:
        """The next step. With `ahead`, tokens are in flight: those that certainly end with theirs
        wait, and so does everybody if someone would have to be retracted."""
        if self._goes_on(LOOKAHEAD_DECODES if ahead else 1):
            steady = self._residents.steady
            return StepPlan([a.decode_segment() for a in steady], steady, [], goes_on=True)
        decodes: list[ActiveSequence] = []
        in_prefill: list[ActiveSequence] = []
        for active in self._residents.running.values():
            if active.seq.in_prefill:
                in_prefill.append(active)
            elif active.generated < active.max_tokens and self._ready(active.seq):
                decodes.append(active)
        if ahead and len(decodes) < LOOKAHEAD_DECODES:
            return NOTHING
        chunks = self._chunks(in_prefill, self._config.max_batch_tokens - len(decodes))
        if not self._secure(decodes, chunks, may_retract=not ahead):
            return NOTHING
        decodes = [a for a in decodes if a.kv is not None]
        prompts = [a for a in chunks if a.kv is not None]
        segments = [a.decode_segment() for a in decodes]
        segments += [a.segment(chunks[a]) for a in prompts]
        self.cut_prompts += any(chunks[a] < a.prefill_rows for a in prompts)
        self._residents.steady = decodes if len(decodes) == len(self._residents.running) else []
        self._steady_steps = 0
        return StepPlan(segments, decodes, prompts)

    def _goes_on(self, least: int) -> bool:
        """Whether the next step's rows are the steady ones, of which there are at least so many."""
        steady = self._residents.steady
        if len(steady) < least or not all(self._ready(active.seq) for active in steady):
            return False
        if not self._steady_steps:
            self._steady_steps = min(map(self._steps_without_a_plan, steady))
        if not self._steady_steps:
            return False
        self._steady_steps -= 1
        return True

    def _steps_without_a_plan(self, active: ActiveSequence) -> int:
        """Decode steps before a sequence lacks a page or has all its tokens. Takes a page for the
        first of them."""
        if active.kv is None or not self._memory.extend(active.kv, active.seq.computed + 1):
            return 0
        rows = self._memory.room(active.kv) - active.seq.computed
        return min(rows, active.max_tokens - active.generated)

    def _chunks(self, in_prefill: list[ActiveSequence], room: int) -> dict[ActiveSequence, int]:
        """Prompt rows of this step. A prompt that begins as another one whose pages are under way
        waits for these."""
        budget = min(room, self._config.prefill_chunk)
        chunks: dict[ActiveSequence, int] = {}
        under_way: set[PageId] = set()
        for active in in_prefill:
            if budget <= 0:
                break
            self._sharing.reuse(active)
            page = self._sharing.next_page(active)
            if not active.seq.in_prefill or page in under_way:
                continue
            if page is not None:
                under_way.add(page)
            chunks[active] = min(budget, active.prefill_rows)
            budget -= chunks[active]
        return chunks

    def _secure(
        self,
        decodes: list[ActiveSequence],
        chunks: dict[ActiveSequence, int],
        *,
        may_retract: bool,
    ) -> bool:
        """Take the pages of all rows, the oldest sequence's first; False if that needs a retraction
        that may not be."""
        rows = dict.fromkeys(decodes, 1) | chunks
        for active in list(self._residents.running.values()):
            count = rows.get(active, 0)
            while count and active.kv is not None:
                if self._memory.extend(active.kv, active.seq.computed + count):
                    break
                if not may_retract:
                    return False
                self._residents.retract_newest()
        return True
