"""What a plugin may bring besides pipelines: checks, commands, routes, audio codecs, observers, and
words for its numbers.

Frozen and free of torch; heavy things are named by `Ref`, as in `specs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from omni_core.specs import Ref

Level: TypeAlias = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What there is to recognise a checkpoint by, read before any model code is imported."""

    path: str
    """Its directory."""
    files: tuple[str, ...]
    """Names of what lies in that directory, sorted."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its config.json; empty if it has none, or one that is no JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check came to."""

    level: Level
    """A "problem" makes `omni doctor` fail; a "warning" costs speed or a feature."""
    text: str
    """What is so, and if that is not well, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """Something about this machine that `omni doctor` looks at."""

    name: str
    check: Ref
    """() -> Finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A subcommand of `omni`."""

    name: str
    help: str
    """One line, for `omni --help`."""
    function: Ref
    """What typer makes a command of: parameters are arguments and options, by their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """An HTTP route beside the server's own, behind the same keys, limits and error table."""

    path: str
    endpoint: Ref
    """(Pipeline) -> the endpoint, async (starlette Request) -> Response. Made when the server
    starts; the pipeline runs once requests come."""
    methods: tuple[str, ...] = ("GET",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What a number means that a stage counts in `Scheduler.stats`, for readers of /metrics."""

    stat: str
    """Its name there; `omni_stage_<stat>` at /metrics."""
    help: str
    """One line, with the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioCodecSpec:
    """A format that speech can be asked for in, by `response_format`."""

    name: str
    media_type: str
    writer: Ref
    """(rate) -> `omni_core.media.encode_stream.Writer` of samples at that rate, in Hz. Made for
    every reply."""
    rates: tuple[int, ...] = ()
    """In Hz, that it knows; empty for any. Speech of another rate becomes the next higher one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSpec:
    """Something that is told of requests and processes as they come and go."""

    name: str
    build: Ref
    """() -> `omni_core.pipeline.Observer`, called when a pipeline starts, in the server's process.
    Its methods are called on the event loop, so they must not wait."""
