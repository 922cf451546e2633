"""`nox -s api` finds what breaks plugins and callers, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import surface
from check import python_breaks
from http_surface import breaks as http_breaks
from surface import stub

OLD = '''
"""A module."""
from dataclasses import dataclass
from typing import Protocol

LIMIT = 3
_HIDDEN = 4

@dataclass(frozen=True, kw_only=True)
class Spec:
    """A spec."""
    name: str
    rate: int = 8

    def resolve(self, deep: bool = False) -> str:
        return self.name

class Codec(Protocol):
    def push(self, samples: bytes) -> bytes:
        """More."""

def build(path: str, *, fast: bool = False) -> Spec:
    return Spec(name=path)
'''


def breaks(tmp_path: Path, change: tuple[str, str], module: str = "specs") -> list[tuple[str, str]]:
    assert change[0] in OLD
    for name, source in (("old", OLD), ("new", OLD.replace(*change))):
        package = tmp_path / name / "omni_core"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / f"{module}.py").write_text(stub(source))
    return list(python_breaks(tmp_path / "old", tmp_path / "new"))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("def build(", "def make("), "omni_core.specs.build"),
        (("path: str, *", "*"), "omni_core.specs.build"),
        (("path: str, *", "path: str, more: int, *"), "omni_core.specs.build"),
        (("    rate: int = 8\n", ""), "omni_core.specs.Spec"),
        (("    rate: int = 8\n", "    rate: int = 8\n    gain: int\n"), "omni_core.specs.Spec"),
        (("def resolve", "def _resolve"), "omni_core.specs.Spec.resolve"),
        (("LIMIT = 3", "LIMITS = 3"), "omni_core.specs.LIMIT"),
        (
            ("def push", "def flush(self) -> bytes: ...\n    def push"),
            "omni_core.specs.Codec.flush",
        ),
    ],
)
def test_a_break_is_found(tmp_path: Path, change: tuple[str, str], path: str) -> None:
    found = {where.partition("(")[0] for where, _ in breaks(tmp_path, change)}
    assert any(where == path or where.startswith(f"{path}.") for where in found), found


@pytest.mark.parametrize(
    "change",
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("_HIDDEN = 4", "_OTHER = 5"),
        ("    rate: int = 8\n", "    rate: int = 8\n    gain: int = 1\n"),
        ("fast: bool = False", "fast: bool = False, deep: bool = True"),
        ("def build(", "def more() -> None: ...\n\ndef build("),
        ('"""A spec."""', '"""Another word."""'),
    ],
)
def test_an_addition_is_no_break(tmp_path: Path, change: tuple[str, str]) -> None:
    assert breaks(tmp_path, change) == []


def test_a_new_argument_of_a_hook_is_no_break(tmp_path: Path) -> None:
    change = ("path: str, *", "path: str, more: int, *")
    assert breaks(tmp_path, change, "hookspecs") == []


def test_breaks_of_the_http_api_are_found() -> None:
    old = {
        "POST /v1/chat": {},
        "ChatBody": {"fields": ["model", "user"], "required": ["model"]},
        "Chat": {"fields": ["id"], "required": ["id"]},
    }
    new = {
        "ChatBody": {"fields": ["model", "seed"], "required": ["model", "seed"]},
        "Chat": {"fields": ["id", "usage"], "required": ["id", "usage"]},
    }
    assert dict(http_breaks(old, new)) == {
        "POST /v1/chat": "is gone",
        "ChatBody.user": "is gone",
        "ChatBody.seed": "is required now",
    }
    assert list(http_breaks(old, {**old, "More": {"fields": [], "required": []}})) == []


def test_what_is_announced_is_read_from_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "compatibility.md"
    lines = (
        "# Compatibility",
        "",
        "## What is announced",
        "",
        "| what | leaves or changes in | instead |",
        "|---|---|---|",
        "| `omni_core.specs.Spec.rate` | 0.3 | `rates` |",
        "| `POST /v1/chat` | 0.3 | |",
        "",
        "## Next",
    )
    page.write_text("\n".join(lines))
    monkeypatch.setattr(surface, "DOCUMENT", page)
    assert surface.announced() == ["omni_core.specs.Spec.rate", "POST /v1/chat"]
