"""A YAML configuration file: plain values, and on which line each of them stands.

Knows YAML. Knows no setting: what the keys mean is for the layers to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeAlias

import yaml

from omni_core.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]

_CONTAINERS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a file (or a mapping written in Python) asks for, unchecked."""

    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = "config"
    """What errors and `omni config explain` call it."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """{path of keys: line, counted from 1}; empty if it was not read from text."""

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """The content of a file; ConfigError if it cannot be read, with every duplicate key."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"--config {path}: cannot be read: {exc}") from exc
        return cls.parse(text, name=path.name)

    @classmethod
    def parse(cls, text: str, *, name: str = "config") -> ConfigFile:
        """The content of a document; ConfigError for bad YAML and for every duplicate key."""
        reader = _Reader(name)
        try:
            values = reader.read(text)
        except yaml.MarkedYAMLError as exc:
            line = exc.problem_mark.line + 1 if exc.problem_mark else 1
            raise ConfigError(f"{name}:{line}: not YAML: {exc.problem}") from exc
        except (yaml.YAMLError, ValueError) as exc:  # e.g. a date such as 2026-13-45
            raise ConfigError(f"{name}: not YAML: {exc}") from exc
        if reader.problems:
            raise ConfigError(reader.problems)
        return cls(values=values, name=name, lines=reader.lines)

    def where(self, *path: str) -> str:
        """The place of a value, for example "omni.yaml:12"."""
        line = self.lines.get(path)
        return self.name if line is None else f"{self.name}:{line}"


class _Reader:
    """Builds plain values from YAML's node graph, which still knows lines and repeated keys."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loader = yaml.SafeLoader("")
        self._open: set[int] = set()
        self.problems: list[str] = []
        self.lines: dict[KeyPath, int] = {}

    def read(self, text: str) -> dict[str, Any]:
        """The mapping at the top of a document; an empty document is an empty mapping."""
        self._loader = yaml.SafeLoader(text)
        node = self._loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            self._report(node, "a configuration file is a mapping of settings")
            return {}
        values: dict[str, Any] = self._mapping(node, ())
        return values

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.ScalarNode):
            value = self._loader.construct_object(node)
            if not isinstance(value, str | int | float | NoneType):
                self._report(node, f"{node.value!r} is a {type(value).__name__}; put it in quotes")
            return value
        if node.tag not in _CONTAINERS:
            self._report(node, f"the tag {node.tag!r} makes no plain value; leave it out")
            return None
        if id(node) in self._open:
            self._report(node, "an alias refers to what it is part of")
            return None
        self._open.add(id(node))
        value = (
            self._mapping(node, path)
            if isinstance(node, yaml.MappingNode)
            else [self._value(item, (*path, str(n))) for n, item in enumerate(node.value)]
        )
        self._open.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value if key_node.tag.endswith(":str") else None
            if key is None:
                self._report(key_node, f"{key_node.value!r} is no name; put it in quotes")
                continue
            line = key_node.start_mark.line + 1
            if key in seen:
                self._report(
                    key_node,
                    f"{'.'.join((*path, key))} is set again, first on line {seen[key]}; remove one",
                )
                continue
            seen[key] = self.lines[*path, key] = line
            values[key] = self._value(value_node, (*path, key))
        return values

    def _report(self, node: yaml.Node, what: str) -> None:
        self.problems.append(f"{self._name}:{node.start_mark.line + 1}: {what}")
