from __future__ import annotations
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
Level: TypeAlias = Literal['ok', 'warning', 'problem']

@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    path: str
    files: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)

@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    level: Level
    text: str

@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    name: str
    check: Ref

@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    name: str
    help: str
    function: Ref

@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    path: str
    endpoint: Ref
    methods: tuple[str, ...] = ('GET',)

@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    stat: str
    help: str

@dataclass(frozen=True, slots=True, kw_only=True)
class AudioCodecSpec:
    name: str
    media_type: str
    writer: Ref
    rates: tuple[int, ...] = ()

@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSpec:
    name: str
    build: Ref
