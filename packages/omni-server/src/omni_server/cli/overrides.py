"""`--STAGE.FIELD VALUE`: options whose names depend on the pipeline.

Knows their spelling only; whether a stage or field exists is found out where they are applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.errors import ConfigError


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """{"stage.field": "value"} from `--stage.field value` and `--stage.field=value`.

    Raises a ConfigError for anything else, all problems at once. The last of two values wins.
    """
    overrides: dict[str, str] = {}
    problems: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        stage, dot, field = name.partition(".")
        if not (word.startswith("--") and stage and dot and field):
            problems.append(f"unknown argument {word!r}; see `omni serve --help`")
        elif equals:
            overrides[name] = value
        elif rest and not rest[0].startswith("--"):
            overrides[name] = rest.pop(0)
        else:
            problems.append(f"--{name} needs a value: --{name} VALUE")
    if problems:
        raise ConfigError(problems)
    return overrides
