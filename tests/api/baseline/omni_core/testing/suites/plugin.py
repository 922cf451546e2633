from __future__ import annotations
import importlib
import json
import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any, ClassVar, Final
import pytest
HEAVY: Final = ('torch', 'transformers', 'sglang', 'onnxruntime', 'ctranslate2', 'av', 'PIL')
IMPORT_BUDGET_S: Final = 0.3

class PluginSuite(Suite):
    module: ClassVar[str]

    @pytest.fixture
    def registry(self) -> Plugins:
        ...

    def test_it_is_light_to_import(self) -> None:
        ...

    def test_it_is_installed_under_an_entry_point(self) -> None:
        ...

    def test_its_hooks_are_known_and_give_what_they_should(self, registry: Plugins) -> None:
        ...

    def test_its_hooks_give_the_same_every_time(self, registry: Plugins) -> None:
        ...

    def test_what_it_registers_survives_a_pickle(self, registry: Plugins) -> None:
        ...

    def test_every_reference_resolves(self, registry: Plugins) -> None:
        ...
