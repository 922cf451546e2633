"""Which rows the next step computes, and who gives up memory for them.

Knows the order of service and the limits of a step. Knows nothing of tensors, sampling or models.

Decode rows come first, then prompts in order of arrival, in chunks. Pages are taken in order of
arrival as well: when there are none, the newest sequence gives up its own, so the oldest always
goes on.
"""

from __future__ import annotations

from omni_core.engine.base import ARRunner, Sequence
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.engine.torch_engine.paged import PagedSequence
from omni_core.engine.torch_engine.plan import NOTHING, StepPlan
from omni_core.engine.torch_engine.residents import Residents
from omni_core.engine.torch_engine.sharing import PageId, PrefixSharing

LOOKAHEAD_DECODES = 2
"""Fewer decode rows than this are not worth a step ahead."""


class Planner:
    """Plans steps for the residents of one engine."""

    def __init__(
        self,
        residents: Residents,
        memory: KVMemory,
        sharing: PrefixSharing,
        config: TorchEngineConfig,
        runner: ARRunner,
    ) -> None:
        self._residents = residents
        self._memory = memory
        self._sharing = sharing
        self._config = config
        self._ready = runner.ready
        self._always_ready = runner.lookahead
        self._steady_steps = 0
        """Steps that the residents' steady rows may still take as they are."""
        self.cut_prompts = 0

    def can_run(self) -> bool:
        """Whether a plan would hold a row for those that run now."""
        if self._always_ready:
            return bool(self._residents.running)
        return any(a.seq.in_prefill or self._ready(a.seq) for a in self._residents.running.values())

    def plan(self, *, ahead: bool = False) -> StepPlan:
        """The next step. With `ahead`, tokens are in flight: those that certainly end with theirs
        wait, and those whose next token depends on it, and so does everybody if someone would have
        to be retracted."""
        steady = self._residents.steady
        least = LOOKAHEAD_DECODES if ahead else 1
        if steady is not None and not steady.constrained and self._goes_on(steady, least):
            return steady
        decodes: list[PagedSequence] = []
        in_prefill: list[PagedSequence] = []
        for active in self._residents.running.values():
            if active.seq.in_prefill:
                in_prefill.append(active)
            elif self._may_decode(active):
                decodes.append(active)
        if ahead and len(decodes) < LOOKAHEAD_DECODES:
            return NOTHING
        chunks = self._chunks(in_prefill, self._config.max_batch_tokens - len(decodes))
        if not self._secure(decodes, chunks, may_retract=not ahead):
            return NOTHING
        decodes = [a for a in decodes if a.kv is not None]
        chunks = {a: count for a, count in chunks.items() if a.kv is not None}
        self.cut_prompts += any(count < a.prefill_rows for a, count in chunks.items())
        plan = StepPlan.of(decodes, chunks)
        everybody = len(decodes) == len(self._residents.running)
        self._residents.steady = plan if decodes and everybody else None
        self._steady_steps = 0
        return plan

    def _may_decode(self, active: PagedSequence) -> bool:
        if active.generated >= active.max_tokens or active.waits_for_token:
            return False
        return self._are_ready([active.seq])

    def _are_ready(self, seqs: list[Sequence]) -> bool:
        return self._always_ready or all(map(self._ready, seqs))

    def _goes_on(self, steady: StepPlan, least: int) -> bool:
        """Whether the steady rows, at least so many, can take the next step."""
        if len(steady.decodes) < least or not self._are_ready(steady.seqs):
            return False
        if not self._steady_steps:
            self._steady_steps = min(map(self._steps_without_a_plan, steady.decodes))
        if not self._steady_steps:
            return False
        self._steady_steps -= 1
        return True

    def _steps_without_a_plan(self, active: PagedSequence) -> int:
        """Decode steps before a sequence lacks a page or has all its tokens. Takes a page for the
        first of them."""
        if active.kv is None or not self._memory.extend(active.kv, active.seq.computed + 1):
            return 0
        rows = self._memory.room(active.kv) - active.seq.computed
        return min(rows, active.max_tokens - active.generated)

    def _chunks(self, in_prefill: list[PagedSequence], room: int) -> dict[PagedSequence, int]:
        """Prompt rows of this step. A prompt that begins as another one whose pages are under way
        waits for these."""
        budget = min(room, self._config.prefill_chunk)
        chunks: dict[PagedSequence, int] = {}
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
        decodes: list[PagedSequence],
        chunks: dict[PagedSequence, int],
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
