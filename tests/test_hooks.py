"""Every hook is documented with its exact signature and an example, and tested."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from omni_core import hookspecs
from omni_core.plugins import KINDS, Plugins
from omni_core.specs import Ref

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "hooks.md").read_text()
EXAMPLE = "omni_parrot"
"""What the examples call themselves."""
HOOKS = {
    name: hook
    for name, hook in vars(hookspecs).items()
    if isinstance(hook, FunctionType) and f"{hookspecs.NAMESPACE}_spec" in vars(hook)
}


def section(hook: FunctionType) -> str:
    """The documentation of one hook, whose heading is its signature."""
    heading = f"### `{hook.__name__}{inspect.signature(hook)}`\n".replace("'", "")
    assert heading in DOCUMENT, f"docs/hooks.md has no heading {heading.strip()}"
    return re.split(r"^###? ", DOCUMENT.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]


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
def test_the_example_of_a_hook_is_a_plugin(
    hook: FunctionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)[0]
    module = ModuleType(EXAMPLE)
    monkeypatch.setitem(sys.modules, EXAMPLE, module)
    exec(compile(source, "docs/hooks.md", "exec"), vars(module))
    plugins = Plugins()
    plugins.register(module, "example")
    [info] = plugins.listing()
    assert hook.__name__ in info.hooks
    for spec in (spec for kind in KINDS for spec in plugins.all(kind)):
        for ref in (getattr(spec, field.name) for field in dataclasses.fields(spec)):
            if isinstance(ref, Ref) and ref.target.startswith(f"{EXAMPLE}:"):
                assert callable(ref.resolve())


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_tested(name: str) -> None:
    """By tests that are named after it."""
    files = (ROOT / "packages").glob("*/tests/test_*.py")
    assert any(re.search(rf"def test_{name}_", file.read_text()) for file in files)


def test_since_when_a_hook_is_called_is_known_and_documented() -> None:
    assert list(hookspecs.HOOKS_SINCE) == list(HOOKS)
    for name, hook in HOOKS.items():
        assert f"\nSince {hookspecs.HOOKS_SINCE[name]}.\n" in section(hook)
