"""The conformance kit: suites whose laws a plugin's tests inherit, and our own packages' do.

```python
from omni_core.testing.suites import PluginSuite


class TestMine(PluginSuite):
    module = "omni_mine"
```

A suite's docstring names the fixtures to give. Needs pytest: `pip install 'omni-core[testing]'`.
New laws come in minor versions, so bound omni-core above: `omni-core[testing]>=0.1,<0.2`.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{name}"
        for name in (
            *("base", "plugin", "pipeline", "stage", "vocoder", "engine"),
            *("relay", "route", "voice"),
        )
    )
)

from omni_core.testing.suites.base import Suite, laws_of  # noqa: E402
from omni_core.testing.suites.engine import EngineSuite, RunnerSuite  # noqa: E402
from omni_core.testing.suites.pipeline import PipelineSuite  # noqa: E402
from omni_core.testing.suites.plugin import PluginSuite  # noqa: E402
from omni_core.testing.suites.relay import RelayPair, RelaySuite  # noqa: E402
from omni_core.testing.suites.route import RouteSuite  # noqa: E402
from omni_core.testing.suites.stage import PreprocessorSuite, Script, StageSuite  # noqa: E402
from omni_core.testing.suites.vocoder import VocoderSuite  # noqa: E402
from omni_core.testing.suites.voice import VoiceSuite  # noqa: E402

__all__ = [
    "EngineSuite",
    "PipelineSuite",
    "PluginSuite",
    "PreprocessorSuite",
    "RelayPair",
    "RelaySuite",
    "RouteSuite",
    "RunnerSuite",
    "Script",
    "StageSuite",
    "Suite",
    "VocoderSuite",
    "VoiceSuite",
    "laws_of",
]
