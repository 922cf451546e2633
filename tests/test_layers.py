"""Who may import whom, and which words may not occur where. Reads sources; imports none of them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {path.name: path for path in sorted((ROOT / "packages").iterdir()) if path.is_dir()}
OURS = {name.replace("-", "_") for name in PACKAGES}

#: Which of our packages each package may import.
MAY_IMPORT = {
    "omni-core": set(),
    "omni-ming": {"omni_core"},
    "omni-qwen3": {"omni_core"},
    "omni-router": set(),
    "omni-server": {"omni_core"},
}

#: Layers inside core, lowest first; a module may import its own layer and those below.
CORE_LAYERS = (
    {"errors", "types", "languages"},
    {"specs", "extensions", "messages", "addresses", "curve", "janitor", "parent", "media"},
    {"hub", "hookspecs", "discovery", "graph", "validate", "relay", "codec", "tensors"}
    | {"scheduler", "engine", "devices", "steps", "checkpoint"},
    {"plugins", "config", "stage", "text", "encoder", "layers"},
    {"coordinator", "doctor"},
    {"pipeline"},
    {"testing"},
)

#: Modules of core that may import torch, anywhere in the file; the others never do.
TORCH_MODULES = (
    *(
        "engine/common/",
        "engine/torch_engine/",
        "engine/sglang_engine/",
        "engine/base.py",
        "codec.py",
        "tensors.py",
        "steps/",
    ),
    *("relay/cuda_", "stage/tracer.py", "testing/cards.py", "layers/", "text/runner.py"),
    *(f"encoder/{name}.py" for name in ("budget", "cached", "images", "rows")),
    *(f"checkpoint/{name}.py" for name in ("tensorfile", "weights", "renew")),
)

#: Distributions whose modules have another name.
FOR_OTHERS = {"websockets"}
"""What a dependency of ours uses if it is there: uvicorn."""
IMPORT_NAMES = {"pillow": "PIL", "pyyaml": "yaml", "pyzmq": "zmq"}

MODEL_NAMES = re.compile(r"qwen|\bming\b|ming[-_]|parrot|hibari", re.IGNORECASE)
TEXTS = {".py", ".tmpl", ".js", ".html", ".css", ".md", ".json", ".toml"}


def plugins_of(folder: Path) -> set[str]:
    """Names under which the package in a folder is a plugin."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return set(project.get("entry-points", {}).get("omni.plugins", {}))


PLUGINS = set().union(*map(plugins_of, [*PACKAGES.values(), *(ROOT / "examples").iterdir()]))
#: Those that carry requests, and must not know whose.
CARRIERS = [name for name, folder in PACKAGES.items() if not plugins_of(folder)]


def sources(package: str) -> Iterator[Path]:
    return (PACKAGES[package] / "src").rglob("*.py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, at run time at module top) for every absolute import of a file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((alias.name, id(node) in top) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((f"{module}.{alias.name}", id(node) in top) for alias in node.names)


def test_every_package_is_listed() -> None:
    assert set(MAY_IMPORT) == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_declared_siblings(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package.replace("-", "_")}
    for path in sources(package):
        for module, _ in imports(path):
            root = module.partition(".")[0]
            assert root not in OURS or root in allowed, f"{path} imports {module}"


@pytest.mark.parametrize("package", PACKAGES)
def test_declared_dependencies_match(package: str) -> None:
    project = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[\[<>=!~ ]", entry)[0] for entry in project["dependencies"]}
    assert {name.replace("-", "_") for name in named} & OURS == MAY_IMPORT[package]


@pytest.mark.parametrize("package", PACKAGES)
def test_whatever_a_package_imports_it_declares(package: str) -> None:
    """And nothing it does not import, apart from its own extras."""
    project = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    hard, optional = set(project["dependencies"]), set().union(*extras.values())
    roots = {module.partition(".")[0] for path in sources(package) for module, _ in imports(path)}
    used = roots - set(sys.stdlib_module_names) - OURS
    assert used <= imported_as(hard | optional), "undeclared"
    assert imported_as(hard) - OURS - FOR_OTHERS <= used, "unused"


def imported_as(requirements: set[str]) -> set[str]:
    """Names under which the code imports what these requirements install."""
    names = {re.split(r"[\[<>=!~ ]", entry)[0].replace("-", "_") for entry in requirements}
    return {IMPORT_NAMES.get(name, name) for name in names}


def test_core_is_layered() -> None:
    level = {name: number for number, layer in enumerate(CORE_LAYERS) for name in layer}
    source = PACKAGES["omni-core"] / "src" / "omni_core"
    for path in sources("omni-core"):
        mine = path.relative_to(source).with_suffix("").parts[0]
        if mine == "__init__":
            continue
        for module, _ in imports(path):
            parts = module.split(".")
            if parts[0] == "omni_core" and parts[1] in level:
                assert level[parts[1]] <= level[mine], f"{path} imports {module}"


def test_every_part_of_core_has_a_layer() -> None:
    source = PACKAGES["omni-core"] / "src" / "omni_core"
    parts = {p.stem for p in source.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__"} == set().union(*CORE_LAYERS)


def test_torch_is_reached_only_where_it_may_be() -> None:
    for package in CARRIERS:
        for path in sources(package):
            if any(name in path.as_posix() for name in TORCH_MODULES):
                continue
            for module, _ in imports(path):
                assert module.partition(".")[0] not in {"torch", "transformers"}, path


def test_every_plugin_of_this_tree_is_a_model_name() -> None:
    assert {"qwen3", "ming", "parrot"} <= PLUGINS
    assert [name for name in sorted(PLUGINS) if not MODEL_NAMES.search(name)] == []
    assert {"omni-core", "omni-router", "omni-server"} <= set(CARRIERS)


@pytest.mark.parametrize("package", CARRIERS)
def test_what_carries_requests_names_no_model(package: str) -> None:
    files = [f for f in (PACKAGES[package] / "src").rglob("*") if f.suffix in TEXTS]
    assert any(file.suffix == ".py" for file in files)
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not MODEL_NAMES.search(line), f"{path}:{number} names a model: {line.strip()}"


def test_the_map_in_the_docs_equals_the_tree() -> None:
    """docs/architecture.md has one line for every module of every package, and no others."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = set(re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE))
    there = {
        str(path.relative_to(PACKAGES[package] / "src"))
        for package in PACKAGES
        for path in sources(package)
        if path.name not in {"__init__.py", "__main__.py"}
    }
    assert listed == there
