"""What strangers are shown and use is public, and what is public is what the baseline holds."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pluggy
import pytest

from omni_core.hookspecs import NAMESPACE, hookimpl
from omni_core.plugins import Plugins

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "api"))
from surface import files, modules, stub  # noqa: E402

BASELINE = ROOT / "tests" / "api" / "baseline"
PAGES = ("hooks.md", "conformance.md", "writing-a-plugin.md", "compatibility.md")
TEMPLATE = ROOT / "packages/omni-server/src/omni_server/cli/plugin_template"
STRANGERS = [ROOT / "tests" / "outsider", *ROOT.glob("examples/*")]


def used(source: str) -> set[str]:
    """Modules of core that a source imports from; it may be a template."""
    return set(re.findall(r"^ *from (omni_core[\w.]*) import", source, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_what_the_docs_import_is_public(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for source in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert used(source) <= set(modules())


def test_a_strangers_plugin_gets_along_with_what_is_public() -> None:
    """Its code at least, and all of what `omni new-plugin` writes; tests may look at more."""
    sources = [file for place in STRANGERS for file in place.glob("src/**/*.py")]
    sources += TEMPLATE.rglob("*.tmpl")
    assert len(sources) > 10
    for file in sources:
        assert used(file.read_text()) <= set(modules()), file


@pytest.mark.parametrize("module", modules())
def test_what_is_public_is_there_and_in_the_baseline(module: str) -> None:
    assert importlib.import_module(module).__doc__
    assert all(file.exists() for file in files(module, BASELINE))


def test_a_stub_has_declarations_alone() -> None:
    source = (
        '"""Doc."""\nfrom omni_core import x\nA: int = 3\n_B = 4\n\ndef f(a: int = 1):\n  g()\n'
    )
    assert stub(source) == "A: int = 3\n\ndef f(a: int=1):\n    ...\n"


def test_an_argument_that_is_to_leave_is_told_to_the_plugin_that_takes_it() -> None:
    leaving = ModuleType("leaving")
    spec = pluggy.HookspecMarker(NAMESPACE)
    message = "'path' leaves in 0.3; take 'checkpoint' instead"

    @spec(warn_on_impl_args={"path": FutureWarning(message)})
    def greet(checkpoint: object, path: str) -> None: ...

    leaving.greet = greet  # type: ignore[attr-defined]
    plugins = Plugins()
    plugins._manager.add_hookspecs(leaving)

    def plugin(function: object) -> ModuleType:
        made = ModuleType("made")
        made.greet = hookimpl(specname="greet")(function)  # type: ignore[attr-defined, call-overload]
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugins.register(plugin(lambda checkpoint: None), "modern")
    with pytest.warns(FutureWarning, match="'path' leaves in 0.3") as told:
        plugins.register(plugin(lambda checkpoint, path: None), "parrot")
    assert told[0].filename == __file__
