"""`--STAGE.FIELD VALUE`: options whose names depend on the pipeline.

Knows their spelling only; whether a stage or field exists is found out where they are applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from omni_core.config.refused import refused_setting


def parse_overrides(
    arguments: Sequence[str], known: Iterable[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """{"stage.field": "value"} from `--stage.field value` and `--stage.field=value`, and problems.

    `known` are the command's own options, to suggest for misspelt ones. Of two values, the last
    wins.
    """
    overrides: dict[str, str] = {}
    problems: list[str] = []
    options = list(known)
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        takes_next = not equals and bool(rest) and not rest[0].startswith("--")
        stage, dot, field = name.partition(".")
        if not word.startswith("--"):
            problems.append(f"unknown argument {word!r}; settings are written --NAME VALUE")
            continue
        if takes_next:
            value = rest.pop(0)
        if not (stage and dot and field):
            problems.append(f"--{name}: {refused_setting(name) or _unknown(name, options)}")
        elif equals or takes_next:
            overrides[name] = value
        else:
            problems.append(f"--{name} needs a value: --{name} VALUE")
    return overrides, problems


def _unknown(name: str, options: Sequence[str]) -> str:
    close = get_close_matches(f"--{name}", options, n=1)
    return f"no such option; {f'did you mean {close[0]}?' if close else 'see --help'}"
