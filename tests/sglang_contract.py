"""Check that every name of SGLang that we rely on is still where we look for it.

`python tests/sglang_contract.py` prints what moved; `nox -s sglang_contract` runs it beside the
pinned release. The list is the table in the header of each `upstream.py`:

| in the table | what is checked |
|---|---|
| `Name` | it is where `upstream.py` imports it from |
| `Name.attribute` | the class has it (method, field or set on `self`), or the function takes it |
| `attribute`, which is not imported | the same, of the first name of its row |

Knows sources and the release that is installed. Runs no engine.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
UPSTREAM = "sglang"
QUOTED = re.compile(r"`([\w.]+)`")


def contact_modules() -> list[Path]:
    """The modules that may import upstream, each with a header that says what."""
    return sorted(ROOT.glob("packages/*/src/**/upstream.py"))


def imported(tree: ast.Module, upstream: str = UPSTREAM) -> dict[str, tuple[str, str]]:
    """{name here: (module, name there)} of everything a source imports from upstream."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        if node.module.partition(".")[0] == upstream
        for alias in node.names
    }


def touched(tree: ast.Module, names: Mapping[str, object]) -> list[tuple[str, str | None]]:
    """(imported name, its attribute or None) for all that the table in the header lists."""
    rows = [line for line in (ast.get_docstring(tree) or "").splitlines() if line.startswith("| `")]
    return [pair for row in rows for pair in _named(QUOTED.findall(row), names)]


def _named(quoted: list[str], names: Mapping[str, object]) -> Iterator[tuple[str, str | None]]:
    owner = quoted[0].partition(".")[0]
    for word in quoted:
        name, _, attribute = word.partition(".")
        yield (name, attribute or None) if attribute or name in names else (owner, word)


def problems(path: Path, upstream: str = UPSTREAM) -> list[str]:
    """What one contact module relies on and upstream does not have, or its header does not list."""
    tree = ast.parse(path.read_text())
    names = imported(tree, upstream)
    listed = touched(tree, names)
    unlisted = sorted({*names} - {name for name, _ in listed})
    found = [f"{name}: not listed in the header" for name in unlisted]
    for name, attribute in listed:
        if name not in names:
            found.append(f"{name}: listed in the header and not imported")
        elif (owner := _look_up(*names[name])) is None:
            found += [] if attribute else [f"{name}: not in {names[name][0]} any more"]
        elif attribute is not None and not _has(owner, attribute):
            found.append(f"{name}.{attribute}: not there any more")
    return [f"{path.name}: {problem}" for problem in found]


def _look_up(module: str, name: str) -> object | None:
    there = _imported(module)
    if there is None or name not in vars(there):
        return None if there is None else _imported(f"{module}.{name}")
    found: object = vars(there)[name]
    return found


def _imported(module: str) -> ModuleType | None:
    """None if there is no such module; other errors pass, as those of what it imports."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or f"{module}.".startswith(f"{error.name}."):
            return None
        raise


def _has(owner: object, attribute: str) -> bool:
    if isinstance(owner, ModuleType):
        return attribute in vars(owner)
    if not isinstance(owner, type):
        return callable(owner) and attribute in inspect.signature(owner).parameters
    for base in inspect.getmro(owner)[:-1]:
        if attribute in vars(base) or attribute in inspect.get_annotations(base):
            return True
        if re.search(rf"\bself\.{attribute}\b", _source(base)):
            return True
    return False


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # of an extension, which has none
        return ""


def main() -> int:
    """Print the names that moved; 1 if there are any."""
    from omni_core.engine.sglang_engine.bootstrap import prepare

    prepare()
    modules = contact_modules()
    found = [problem for path in modules for problem in problems(path)]
    count = sum(len(touched(tree, imported(tree))) for tree in map(_parsed, modules))
    asked = f"{count} names in {len(modules)} modules, asked of sglang {version(UPSTREAM)}"
    print(*found, f"{asked}: {len(found)} problems", sep="\n")
    return int(bool(found))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
