"""Options of a stage that an engine reads: text or YAML values become what the engine wants.

Knows names and kinds of values. Knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from omni_core.errors import ConfigError
from omni_core.specs import StageContext

Kind: TypeAlias = tuple[Callable[[Any], Any], str]
"""(reader, what it must be); the reader raises TypeError or ValueError for anything else."""
Lookahead: TypeAlias = Literal["auto", "on", "off"]
"""What the option of that name may be; each engine says what it means by auto."""


def read_options(ctx: StageContext, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Those of the named options that the stage has; ConfigError if one is not of its kind."""
    options = ctx.stage.options
    return {name: _read(ctx, name, kind) for name, kind in kinds.items() if name in options}


def _read(ctx: StageContext, name: str, kind: Kind) -> Any:
    value, (read, described) = ctx.stage.options[name], kind
    try:
        return read(value)
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"stage {ctx.stage.name!r}: {name} must be {described}, not {value!r}"
        ) from exc


def _truth(value: Any) -> bool:
    truth = {"true": True, "false": False}.get(str(value).lower())
    if truth is None:
        raise ValueError(value)
    return truth


def _switch(value: Any) -> str:
    """YAML reads a bare on or off as a truth value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


WHOLE: Final[Kind] = (int, "a whole number")
NUMBER: Final[Kind] = (float, "a number")
TRUTH: Final[Kind] = (_truth, "true or false")
SWITCH: Final[Kind] = (_switch, "auto, on or off")

ENGINE_OPTIONS: Final[Mapping[str, Kind]] = {
    "max_running": WHOLE,
    "max_batch_tokens": WHOLE,
    "prefill_chunk": WHOLE,
    "kv_budget_bytes": WHOLE,
    "prefix_cache": TRUTH,
    "lookahead": SWITCH,
    "coalesce_ms": NUMBER,
}
"""What every engine is told by these names."""
