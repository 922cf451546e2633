"""What we rely on of SGLang is listed, and the check of that list finds what moves."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import sglang_contract as contract

ROOT = Path(__file__).resolve().parent.parent
RELEASE = """
class Base:
    queue: list

    def step(self):
        self.batch = None

class Engine(Base):
    def run(self): ...

def publish(settings, ranks=None): ...
"""
HEADER = '''"""What we rely on.

| name | for |
|---|---|
| `Engine` | `run`, `queue`, and `batch` |
| `Engine.step` | the rest |
| `publish` | takes `settings` |
| `layer` | `turn` |

Text may quote `anything.it.likes`.
"""
'''
IMPORTS = """
from upstream_like.core import Engine, publish
from upstream_like import layers as layer
"""


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package like SGLang."""
    package = tmp_path / "upstream_like"
    (package / "layers").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core.py").write_text(RELEASE)
    (package / "layers" / "__init__.py").write_text("def turn(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("upstream_like")]:
        monkeypatch.delitem(sys.modules, name)
    return "upstream_like"


def told(tmp_path: Path, upstream: str, source: str) -> list[str]:
    path = tmp_path / "upstream.py"
    path.write_text(source)
    return contract.problems(path, upstream)


def test_nothing_is_told_of_what_is_there(tmp_path: Path, upstream: str) -> None:
    assert told(tmp_path, upstream, HEADER + IMPORTS) == []


@pytest.mark.parametrize(
    ("listed", "moved", "problem"),
    [
        ("`run`", "`walk`", "Engine.walk: not there any more"),
        ("`batch`", "`batches`", "Engine.batches: not there any more"),
        ("`Engine.step`", "`Engine.stop`", "Engine.stop: not there any more"),
        ("`turn`", "`turned`", "layer.turned: not there any more"),
        ("`settings`", "`configuration`", "publish.configuration: not there any more"),
        ("| `publish` | takes `settings` |", "", "publish: not listed in the header"),
        ("`layer`", "`Layer.turn`", "Layer: listed in the header and not imported"),
    ],
)
def test_a_name_that_moved_is_told(
    tmp_path: Path, upstream: str, listed: str, moved: str, problem: str
) -> None:
    found = told(tmp_path, upstream, HEADER.replace(listed, moved) + IMPORTS)
    assert f"upstream.py: {problem}" in found


def test_an_import_that_moved_is_told(tmp_path: Path, upstream: str) -> None:
    gone = IMPORTS.replace("upstream_like.core", "upstream_like.heart")
    found = told(tmp_path, upstream, HEADER + gone)
    assert "upstream.py: Engine: not in upstream_like.heart any more" in found
    gone = HEADER.replace("`publish`", "`advertise`") + IMPORTS.replace("publish", "advertise")
    assert "upstream.py: advertise: not in upstream_like.core any more" in told(
        tmp_path, upstream, gone
    )


@pytest.mark.parametrize("path", contract.contact_modules(), ids=lambda path: path.parent.name)
def test_every_import_of_a_contact_module_is_in_its_header(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = contract.imported(tree)
    assert names
    assert {name for name, _ in contract.touched(tree, names)} == {*names}


def test_nothing_else_imports_sglang() -> None:
    contacts = contract.contact_modules()
    for path in ROOT.glob("packages/*/src/**/*.py"):
        tree = ast.parse(path.read_text())
        plain = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        assert not [name for name in plain if name.partition(".")[0] == contract.UPSTREAM], path
        assert path in contacts or not contract.imported(tree), path
