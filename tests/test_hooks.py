"""Every hook is documented with its exact signature, and used by a plugin of this tree."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from omni_core import hookspecs
from omni_core.plugins import GROUP, Plugins

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "hooks.md").read_text()
IN_TREE = [path.name for path in (ROOT / "packages").iterdir()]
HOOKS = {
    name: hook
    for name, hook in vars(hookspecs).items()
    if isinstance(hook, FunctionType) and f"{hookspecs.NAMESPACE}_spec" in vars(hook)
}


def section(hook: FunctionType) -> str:
    """The documentation of one hook, whose heading is its signature."""
    heading = f"### `{hook.__name__}{inspect.signature(hook)}`\n".replace("'", "")
    assert heading in DOCUMENT, f"docs/hooks.md has no heading {heading.strip()}"
    return re.split(r"^##", DOCUMENT.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_there_are_hooks_and_only_these_are_documented() -> None:
    documented = re.findall(r"^### `(\w+)\(", DOCUMENT, re.MULTILINE)
    assert documented == list(HOOKS) != []


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_a_hook_is_one_documented_sentence(hook: FunctionType) -> None:
    sentence = inspect.getdoc(hook)
    assert sentence is not None
    assert re.fullmatch(r"[A-Z][^.]*\.", sentence)
    assert sentence in section(hook)
    assert re.search(r"^Since \d+\.\d+\.$", section(hook), re.MULTILINE)


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_the_example_of_a_hook_is_a_plugin(hook: FunctionType) -> None:
    [source] = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)
    module = ModuleType("example")
    exec(compile(source, "docs/hooks.md", "exec"), vars(module))
    plugins = Plugins()
    plugins.register(module, "example")
    [info] = plugins.listing()
    assert hook.__name__ in info.hooks


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_used_by_a_plugin_of_this_tree(name: str) -> None:
    points = [p for p in entry_points(group=GROUP) if p.dist and p.dist.name in IN_TREE]
    marker = f"{hookspecs.NAMESPACE}_impl"
    users = [p.name for p in points if marker in vars(vars(p.load()).get(name, ModuleType("")))]
    assert users, f"no package of this tree implements {name}"
