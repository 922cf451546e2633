"""`omni-router`: the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from omni_router import __version__
from omni_router.errors import ConfigError
from omni_router.serve import serve
from omni_router.settings import HELP, Settings, read

LOG_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"
_USAGE_ERROR: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Route until a signal; exits with 2 and what is wrong for settings that cannot be."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    typed = vars(parser().parse_args(arguments))
    path: Path | None = typed.pop("config")
    try:
        serve(read(path, typed))
    except ConfigError as exc:
        sys.stderr.write(f"omni-router: {exc}\n")
        raise SystemExit(_USAGE_ERROR) from None


def parser() -> argparse.ArgumentParser:
    """Every setting is an option; what is not typed is None."""
    made = argparse.ArgumentParser(
        prog="omni-router",
        description="One address in front of many workers.",
        epilog="Settings may stand in a YAML file too (--config), by the same names with _; the "
        "command line wins. docs/router.md explains each.",
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"omni-router {__version__}")
    made.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    defaults = Settings()
    for name, told in HELP.items():
        default = getattr(defaults, name)
        shown = f" ({_written(default)} if not set)" if default not in (None, ()) else ""
        made.add_argument(option(name), dest=name, help=told + shown, **_form(name))
    return made


def option(name: str) -> str:
    """Of a setting."""
    return "--worker" if name == "workers" else f"--{name.replace('_', '-')}"


def _form(name: str) -> dict[str, Any]:
    match name:
        case "workers":
            return {"action": "append", "metavar": "URL", "type": lambda url: {"url": url}}
        case "affinity":
            return {"metavar": "KINDS", "type": lambda kinds: [k for k in kinds.split(",") if k]}
        case _:
            return {"metavar": name.rpartition("_")[2].upper()}


def _written(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
