"""What is wrong with a stage graph: all problems at once, each with stage, field and mend.

Pure functions over `StageConfig`. Knows nothing of running processes, models
or layers of configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Final, TypeAlias, get_args

from omni_core.addresses import COORDINATOR
from omni_core.engine.base import ENGINES, TORCH, EngineCapabilities
from omni_core.graph import cards_of, cycles, process_of, reachable, replica_names
from omni_core.specs import StageConfig
from omni_core.types import Modality

_PROCESS_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ROUNDING: Final = 1e-9
Engines: TypeAlias = Mapping[str, EngineCapabilities]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong."""

    stage: str | None
    """None if it is the pipeline's."""
    field: str
    fault: str
    """Read after the field: "is 0", "names 'x', which does not exist"."""
    mend: str

    def sentence(self, source: str | None = None) -> str:
        """The problem for a person; `source` is where the field's value was set."""
        place = "pipeline" if self.stage is None else f"stage {self.stage!r}"
        origin = f" ({source})" if source else ""
        return f"{place}: {self.field} {self.fault}{origin}; {self.mend}"


def problems(
    stages: Sequence[StageConfig],
    entry: str,
    *,
    produces: Iterable[Modality] = (),
    engines: Engines = ENGINES,
) -> list[Problem]:
    """Everything wrong with a graph that must be able to answer with `produces`."""
    names = [stage.name for stage in stages]
    found = list(_name_problems(names, entry))
    for stage in stages:
        found += _edge_problems(stage, names)
        found += _gather_problems(stage)
        found += _number_problems(stage)
        found += _placement_problems(stage, stages, engines)
        found += _engine_problems(stage, stages, engines)
        found += _replica_problems(stage, stages)
        found += _environment_problems(stage, stages)
    found += _walk_problems(stages, entry)
    found += _terminal_problems(stages, entry, produces)
    return [*found, *_memory_problems(stages)]


def nearest(name: str, known: Sequence[str]) -> str:
    """The mend for a misspelt name."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"


def _name_problems(names: Sequence[str], entry: str) -> Iterator[Problem]:
    for name in sorted(set(names)):
        if (count := names.count(name)) > 1:
            yield Problem(
                stage=name, field="name", fault=f"is used {count} times", mend="rename all but one"
            )
    if entry not in names:
        yield Problem(
            stage=None,
            field="entry",
            fault=f"names {entry!r}, which does not exist",
            mend=nearest(entry, names),
        )


def _edge_problems(stage: StageConfig, names: Sequence[str]) -> Iterator[Problem]:
    for field, targets in (("next", stage.next), ("wait_for", stage.wait_for)):
        for target in targets:
            if target not in names:
                fault = f"names {target!r}, which does not exist"
                yield Problem(
                    stage=stage.name, field=field, fault=fault, mend=nearest(target, names)
                )
    for field, keys in (("stream_to", stage.stream_to), ("project_payload", stage.project_payload)):
        for key in keys:
            if key not in stage.next:
                fault = f"names {key!r}, to which no payload goes"
                yield Problem(
                    stage=stage.name, field=field, fault=fault, mend="name it in next as well"
                )
    if not stage.next and stage.terminal is None:
        yield Problem(
            stage=stage.name,
            field="next",
            fault="is empty and terminal is not set",
            mend="name the next stages, or set terminal if requests end there",
        )


def _gather_problems(stage: StageConfig) -> Iterator[Problem]:
    for field, fn in (("wait_for_fn", stage.wait_for_fn), ("merge_fn", stage.merge_fn)):
        if fn is not None and not stage.wait_for:
            yield Problem(
                stage=stage.name,
                field=field,
                fault="is set without wait_for",
                mend="name the sources to gather in wait_for",
            )
    if len(stage.wait_for) > 1 and stage.merge_fn is None:
        yield Problem(
            stage=stage.name,
            field="merge_fn",
            fault="is not set for the several sources of wait_for",
            mend="set it to what makes one payload of theirs",
        )


def _number_problems(stage: StageConfig) -> Iterator[Problem]:
    for field in ("max_batch", "max_concurrency", "tp_size", "replicas"):
        if (value := getattr(stage, field)) < 1:
            yield Problem(
                stage=stage.name, field=field, fault=f"is {value}", mend="it must be at least 1"
            )
    if not 0 <= stage.max_wait_ms < inf:
        yield Problem(
            stage=stage.name,
            field="max_wait_ms",
            fault=f"is {stage.max_wait_ms}",
            mend="it must be 0 or more",
        )
    if stage.memory_fraction is not None and not 0 < stage.memory_fraction <= 1:
        yield Problem(
            stage=stage.name,
            field="memory_fraction",
            fault=f"is {stage.memory_fraction}",
            mend="it is a share of one card, above 0 and at most 1",
        )


def _placement_problems(
    stage: StageConfig, stages: Sequence[StageConfig], engines: Engines
) -> Iterator[Problem]:
    process = process_of(stage)
    if process == COORDINATOR or not _PROCESS_NAME.fullmatch(process):
        yield Problem(
            stage=stage.name,
            field="process",
            fault=f"is {process!r}",
            mend=f"use up to 64 letters, digits, '_', '-' and '.', and not {COORDINATOR!r}",
        )
    yield from _parallel_problems(stage, stages, engines)
    cards = cards_of(stage)
    if any(card < 0 for card in cards) or len(set(cards)) < len(cards):
        yield Problem(
            stage=stage.name,
            field="gpu",
            fault=f"is {stage.gpu}",
            mend="cards count from 0, and each is named once",
        )
    for other in stages:
        if other.name in stage.not_on_cards_of and (common := {*cards} & {*cards_of(other)}):
            yield Problem(
                stage=stage.name,
                field="gpu",
                fault=f"is {min(common)}, the card of {other.name!r}, which this variant keeps "
                "apart",
                mend=f"use another card with --{stage.name}.gpu N, or another variant",
            )
    for name in set(stage.not_on_cards_of) - {other.name for other in stages}:
        yield Problem(
            stage=stage.name,
            field="not_on_cards_of",
            fault=f"names {name!r}, which does not exist",
            mend=nearest(name, [other.name for other in stages]),
        )


def _parallel_problems(
    stage: StageConfig, stages: Sequence[StageConfig], engines: Engines
) -> Iterator[Problem]:
    engine = _engine_of(stage, engines)
    if stage.tp_size > 1 and not engine.tensor_parallel:
        yield Problem(
            stage=stage.name,
            field="tp_size",
            fault=f"is {stage.tp_size} but the {engine.name} engine has no tensor parallelism",
            mend="set it to 1",
        )
    elif stage.tp_size > 1 and not stage.splits:
        yield Problem(
            stage=stage.name,
            field="tp_size",
            fault=f"is {stage.tp_size} but the model of this stage cannot be split",
            mend="set it to 1",
        )
    sharing = _sharing(stage, stages)
    if stage.tp_size > 1 and sharing:
        yield Problem(
            stage=stage.name,
            field="process",
            fault=f"is shared with {', '.join(map(repr, sharing))} but each of its {stage.tp_size} "
            "ranks needs a process",
            mend="set it to a name that no other stage has",
        )
    ranks = stage.tp_size * stage.replicas
    count = len(cards_of(stage))
    least = 0 if stage.splits else 1  # one card is enough for replicas, and not for ranks
    if count > least and count not in (stage.tp_size, ranks):
        yield Problem(
            stage=stage.name,
            field="gpu",
            fault=f"names {count} cards but tp_size is {stage.tp_size} and replicas "
            f"{stage.replicas}",
            mend="name one card for each rank, or one for all replicas",
        )


def _engine_problems(
    stage: StageConfig, stages: Sequence[StageConfig], engines: Engines
) -> Iterator[Problem]:
    for name in sorted({*stage.ar_engines} - {*engines}):
        yield Problem(
            stage=stage.name,
            field="ar_engines",
            fault=f"names {name!r}, which does not exist",
            mend=nearest(name, list(engines)),
        )
    if stage.ar_engine is None:
        return
    if not stage.ar_engines:
        yield Problem(
            stage=stage.name,
            field="ar_engine",
            fault=f"is {stage.ar_engine} but the stage is not autoregressive",
            mend="leave it out",
        )
    elif stage.ar_engine not in stage.ar_engines:
        able = " or ".join(stage.ar_engines)
        yield Problem(
            stage=stage.name,
            field="ar_engine",
            fault=f"is {stage.ar_engine} but the stage can only be driven by {able}",
            mend=f"use --{stage.name}.ar_engine {stage.ar_engines[0]}",
        )
    alike = {s.name for s in stages[: stages.index(stage)] if s.ar_engine == stage.ar_engine}
    twice = alike & {*_sharing(stage, stages)}
    if twice and _engine_of(stage, engines).one_per_process:
        yield Problem(
            stage=stage.name,
            field="process",
            fault=f"is shared with {', '.join(map(repr, sorted(twice)))}, and a process holds one "
            f"{stage.ar_engine} engine",
            mend="set it to null, which gives the stage its own",
        )


def _engine_of(stage: StageConfig, engines: Engines) -> EngineCapabilities:
    """Torch for a stage that names none, or one that does not exist."""
    return engines.get(stage.ar_engine or TORCH.name, TORCH)


def _sharing(stage: StageConfig, stages: Sequence[StageConfig]) -> list[str]:
    """Other stages of its process."""
    return [s.name for s in stages if s is not stage and process_of(s) == process_of(stage)]


def _replica_problems(stage: StageConfig, stages: Sequence[StageConfig]) -> Iterator[Problem]:
    """A process is replicated as a whole; told at the later of two stages that differ."""
    for other in stages[: stages.index(stage)]:
        if process_of(other) == process_of(stage) and other.replicas != stage.replicas:
            yield Problem(
                stage=stage.name,
                field="replicas",
                fault=f"is {stage.replicas} but {other.name!r}, in the same process, has "
                f"{other.replicas}",
                mend="set the same for both, or give one a process of its own",
            )
    taken = {process_of(other) for other in stages}
    for name in replica_names(process_of(stage), stage.replicas)[1:]:
        if name in taken:
            yield Problem(
                stage=stage.name,
                field="process",
                fault=f"has a replica {name!r}, and another process is called that",
                mend="rename one",
            )


def _environment_problems(stage: StageConfig, stages: Sequence[StageConfig]) -> Iterator[Problem]:
    """A process has one environment; told at the later of two stages that want different ones."""
    for other in stages[: stages.index(stage)]:
        if process_of(other) != process_of(stage):
            continue
        for name in stage.env.keys() & other.env.keys():
            if stage.env[name] != other.env[name]:
                yield Problem(
                    stage=stage.name,
                    field=f"env.{name}",
                    fault=f"is {stage.env[name]!r} but {other.name!r}, in the same process, sets "
                    f"{other.env[name]!r}",
                    mend="set one value, or give the stages processes of their own",
                )


def _walk_problems(stages: Sequence[StageConfig], entry: str) -> Iterator[Problem]:
    edges = {stage.name: set(stage.next) for stage in stages}
    visited = reachable(stages, entry) if entry in edges else set(edges)
    for stage in stages:
        if stage.name not in visited:
            yield Problem(
                stage=stage.name,
                field="name",
                fault=f"is unreachable from {entry!r}",
                mend="add it to the next of a stage, or remove it",
            )
        for source in stage.wait_for:
            if source in edges and stage.name not in edges[source]:
                yield Problem(
                    stage=stage.name,
                    field="wait_for",
                    fault=f"names {source!r}, from which no route leads here",
                    mend=f"add {stage.name!r} to the next of {source!r}, or do not wait for it",
                )
    for cycle in cycles(stages):
        yield Problem(
            stage=cycle[0],
            field="next",
            fault=f"leads back to it ({' -> '.join((*cycle, cycle[0]))})",
            mend="remove one of these edges",
        )


def _terminal_problems(
    stages: Sequence[StageConfig], entry: str, produces: Iterable[Modality]
) -> Iterator[Problem]:
    kinds = get_args(Modality)
    for stage in stages:
        if stage.terminal is not None and stage.terminal not in kinds:
            yield Problem(
                stage=stage.name,
                field="terminal",
                fault=f"is {stage.terminal!r}",
                mend=f"choose from {', '.join(kinds)}",
            )
    visited = reachable(stages, entry)
    there = {stage.terminal for stage in stages if stage.name in visited}
    for modality in produces:
        if modality not in there:
            yield Problem(
                stage=None,
                field="terminal",
                fault=f"{modality!r} is promised and reachable at no stage",
                mend=f"set terminal={modality!r} on the stage that emits it",
            )


def _memory_problems(stages: Sequence[StageConfig]) -> Iterator[Problem]:
    shares: dict[int, dict[str, float]] = {}
    for stage in stages:
        for card in cards_of(stage):
            if stage.memory_fraction is not None:
                copies = stage.replicas if len(cards_of(stage)) <= stage.tp_size else 1
                shares.setdefault(card, {})[stage.name] = copies * stage.memory_fraction
    for card, share in sorted(shares.items()):
        if (total := sum(share.values())) > 1.0 + _ROUNDING:
            largest = max(share, key=lambda name: share[name])
            parts = " + ".join(f"{part:g} of {name!r}" for name, part in share.items())
            yield Problem(
                stage=largest,
                field="memory_fraction",
                fault=f"does not fit on card {card}: {parts} = {total:.2f}",
                mend="lower them to at most 1 together, or move a stage with --STAGE.gpu N",
            )
