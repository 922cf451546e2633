"""The public surface: which modules it is, and their source without bodies and docstrings.

Reads docs/compatibility.md and sources; imports none of ours.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "packages" / "omni-core" / "src"
PACKAGE = "omni_core"
DOCUMENT = ROOT / "docs" / "compatibility.md"


def table(heading: str) -> list[list[str]]:
    """The cells of a table of docs/compatibility.md, without its head."""
    section = DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def modules() -> list[str]:
    """Public modules, those inside a package that is public included."""
    return [name.strip("`") for name, _ in table("What is public")]


def announced() -> list[str]:
    """Paths of what is announced to leave or to change."""
    return re.findall(
        r"^`([\w./ ]+)`", "\n".join(row[0] for row in table("What is announced")), re.M
    )


def files(module: str, root: Path = SOURCE) -> list[Path]:
    """The source of a module; of a public package of suites, that of all its modules."""
    path = root.joinpath(*module.split("."))
    if not path.is_dir():
        return [path.with_suffix(".py")]
    return sorted(path.glob("*.py")) if "testing" in module else [path / "__init__.py"]


def write(root: Path) -> None:
    """The surface of all public modules, as stubs under `root`."""
    for module in modules():
        for file in files(module):
            target = root / file.relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(stub(_inlined(file)))
            for parent in target.parent.relative_to(root).parents:
                (root / parent / "__init__.py").touch()
            (target.parent / "__init__.py").touch()


def _inlined(file: Path) -> str:
    """A source, and after it what is defined elsewhere in core and stands in its `__all__`."""
    source = file.read_text()
    tree, parts = ast.parse(source), [source]
    given = _given(tree)
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(PACKAGE):
            wanted = given & {alias.name for alias in statement.names}
            [path] = files(str(statement.module))
            found = {_name(part): part for part in _definitions(path)}
            parts += [found.get(name, f"{name}: object") for name in sorted(wanted)]
    return "\n\n".join(parts)


def _given(tree: ast.Module) -> set[str]:
    """The names in `__all__`."""
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
            case _:
                pass
    return set()


def _definitions(path: Path) -> list[str]:
    return [ast.unparse(statement) for statement in ast.parse(path.read_text()).body]


def _name(source: str) -> str | None:
    """What a statement defines, if it is one thing."""
    match ast.parse(source).body:
        case [ast.FunctionDef(name=name)] | [ast.AsyncFunctionDef(name=name)]:
            return name
        case [ast.ClassDef(name=name)] | [ast.AnnAssign(target=ast.Name(id=name))]:
            return name
        case [ast.Assign(targets=[ast.Name(id=name)])]:
            return name
        case _:
            return None


def stub(source: str) -> str:
    """Declarations alone: imports from elsewhere, public names with signatures and defaults."""
    tree = ast.parse(source)
    tree.body = _kept(tree.body)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _kept(body: list[ast.stmt]) -> list[ast.stmt]:
    return [kept for statement in body if (kept := _declaration(statement)) is not None]


def _declaration(statement: ast.stmt) -> ast.stmt | None:
    match statement:
        case ast.ImportFrom(module=str(module)) if module.startswith(PACKAGE):
            return None  # an alias to what is not here
        case ast.Import() | ast.ImportFrom():
            return statement
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if not _is_public(name):
                return None
            statement.body = [ast.Expr(ast.Constant(...))]
            return statement
        case ast.ClassDef(name=name):
            if not _is_public(name):
                return None
            statement.body = _kept(statement.body) or [ast.Expr(ast.Constant(...))]
            return statement
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return statement if _is_public(name) else None
        case _:
            return None


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))
