"""Options of stages that are whole numbers, and those that several stages have.

Knows a stage's configuration. Knows nothing of what an option is for.
"""

from __future__ import annotations

from typing import TypeVar

from omni_core.errors import ConfigError
from omni_core.specs import StageConfig

CACHE_ENTRIES = "cache_entries"
"""Of encoders: items whose outputs are kept; of preprocessing: items whose measures are. 0 is off.
Preprocessing should not remember more than the encoders keep, or these read files again."""
DEFAULT_ENTRIES = 64

T = TypeVar("T", int, None)


def whole_number(stage: StageConfig, name: str, default: T, *, least: int = 1) -> int | T:
    """The option `name` of a stage; ConfigError for anything but a whole number from `least` on."""
    given = stage.options.get(name)
    if given is None:
        return default
    if type(given) is not int or given < least:
        raise ConfigError(
            f"stage {stage.name!r}: {name} must be a whole number of at least {least}, "
            f"not {given!r}"
        )
    return given
