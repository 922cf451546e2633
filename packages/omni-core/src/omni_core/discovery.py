"""Which plugins are installed, which of them are wanted, and their modules.

Knows entry points and two environment variables. Knows no hook.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Final

from omni_core.errors import PluginError

GROUP: Final = "omni.plugins"
ALLOW_LIST: Final = "OMNI_PLUGINS"
SKIP_BROKEN: Final = "OMNI_SKIP_BROKEN_PLUGINS"
"""Set to anything but "" and "0", a plugin that cannot be loaded is named and left out."""
_ITS_OWN_FRAMES: Final = 5


def installed() -> dict[str, EntryPoint]:
    """Entry points by name; two distributions must not use one name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise PluginError(
                f"two plugins are named {point.name!r}: {other.value} of {distribution(other)} "
                f"and {point.value} of {distribution(point)}; uninstall one"
            )
    return found


def wanted(found: dict[str, EntryPoint]) -> list[str]:
    """Names of the plugins to load: all, or those on the allow list."""
    listed = os.environ.get(ALLOW_LIST)
    if listed is None:
        return sorted(found)
    names = [name.strip() for name in listed.split(",") if name.strip()]
    for name in names:
        if name not in found:
            raise PluginError(f"{ALLOW_LIST}: {unknown('plugin', name, found)}")
    return names


def skips_broken() -> bool:
    """Whether plugins that cannot be loaded are left out."""
    return os.environ.get(SKIP_BROKEN, "") not in ("", "0")


def load(point: EntryPoint) -> ModuleType:
    """Import a plugin; PluginError with the traceback of the import if that fails."""
    try:
        module = point.load()
    except Exception as exc:
        raise PluginError(
            f"plugin {point.name!r} ({point.value} of {distribution(point)}) fails to import: "
            f"{type(exc).__name__}: {exc}; mend or uninstall it, or leave it out with {ALLOW_LIST} "
            f"or {SKIP_BROKEN}=1\n{_traceback(exc)}"
        ) from exc
    if not isinstance(module, ModuleType):
        raise PluginError(
            f"plugin {point.name!r} of {distribution(point)}: its entry point {point.value!r} "
            "must name a module"
        )
    return module


def distribution(point: EntryPoint) -> str:
    """Who brings a plugin."""
    return "an unknown distribution" if point.dist is None else point.dist.name


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a name that nobody has, with the nearest of those there are."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


def _traceback(exc: Exception) -> str:
    """Without our frames and the import system's, which come first and say nothing."""
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    lines = traceback.format_list(theirs[-_ITS_OWN_FRAMES:])
    lines += traceback.format_exception_only(exc)
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()
