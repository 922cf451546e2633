"""`PluginSuite`: a plugin is light to import, says the same every time, and names what is there."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any, ClassVar, Final

import pytest

from omni_core.plugins import GROUP, KINDS, Plugins
from omni_core.testing.suites.base import Suite
from omni_core.testing.suites.refs import refs_in

HEAVY: Final = ("torch", "transformers", "sglang", "onnxruntime", "ctranslate2", "av", "PIL")
"""Modules that belong behind a `Ref`: every `omni` command imports all plugins."""
IMPORT_BUDGET_S: Final = 0.3
"""Of processor time, for the plugin alone."""
_REGISTERED: Final = """
import importlib, json, sys, time
from omni_core.plugins import KINDS, Plugins
before = time.process_time()
module = importlib.import_module(sys.argv[1])
plugins = Plugins()
plugins.register(module, "it")
for kind in KINDS:
    plugins.all(kind)
print(json.dumps({"took_s": time.process_time() - before, "modules": list(sys.modules)}))
"""


class PluginSuite(Suite):
    """Give `module`, a string: the plugin's module, as its entry point names it ("omni_mine")."""

    module: ClassVar[str]

    @pytest.fixture
    def registry(self) -> Plugins:
        """The plugin alone."""
        plugins = Plugins()
        plugins.register(importlib.import_module(self.module), "it")
        return plugins

    def test_it_is_light_to_import(self) -> None:
        """In a process of its own: no heavy module, and within the budget."""
        module = self.module
        command = [sys.executable, "-c", _REGISTERED, module]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        heavy = sorted(set(HEAVY) & set(found["modules"]))
        assert not heavy, f"importing {module} and calling its hooks imports {', '.join(heavy)}"
        assert found["took_s"] < IMPORT_BUDGET_S

    def test_it_is_installed_under_an_entry_point(self) -> None:
        """Of a distribution that says for which omni-core it is made, upper bound included."""
        points = [p for p in entry_points(group=GROUP) if p.value == self.module]
        assert points, f"no entry point of {GROUP!r} names {self.module}: install the package"
        [point] = points
        assert point.dist is not None
        needed = [r for r in point.dist.requires or () if r.startswith("omni-core")]
        assert needed, f"{point.dist.name} does not depend on omni-core"
        assert all("<" in r or "~=" in r for r in needed), "bound omni-core above: >=0.1,<0.2"

    def test_its_hooks_are_known_and_give_what_they_should(self, registry: Plugins) -> None:
        """Whatever is misspelt is an error when it is registered, or collected."""
        [info] = registry.listing()
        assert info.hooks, "it implements no hook"

    def test_its_hooks_give_the_same_every_time(self, registry: Plugins) -> None:
        """They are pure."""
        for kind in KINDS:
            assert registry.owned(kind) == registry.owned(kind), kind.hook

    def test_what_it_registers_survives_a_pickle(self, registry: Plugins) -> None:
        """Plain data and importable names only: no lambda, no open file."""
        for kind in KINDS:
            for spec in registry.all(kind):
                assert pickle.loads(pickle.dumps(spec)) == spec  # made here, so safe to load

    def test_every_reference_resolves(self, registry: Plugins) -> None:
        """To something that can be called."""
        for kind in KINDS:
            for spec in registry.all(kind):
                for place, ref in refs_in(spec):
                    assert callable(ref.resolve()), f"{place}: {ref.target} cannot be called"
