"""`omni new-plugin`: a package of one's own that works, to be changed into what one wants.

Copies `plugin_template`, whose names stand between underscores. Knows names and files; the stages
that the package begins with are in the template.
"""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from omni_core.errors import ConfigError

MOST_LETTERS: Final = 40
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PREFIX: Final = "omni-"
_SUFFIX: Final = ".tmpl"
"""Of the template's files, which keeps tools from taking them for code."""


def new_plugin(
    name: Annotated[str, typer.Argument(help="What it is called: omni-NAME on the shelf.")],
    directory: Annotated[Path, typer.Option(help="Where to put the folder omni-NAME.")] = Path(),
) -> None:
    """Write a plugin that works: two stages, text and speech, with tests that pass."""
    written = write(name, directory)
    plugin = written.name.removeprefix(_PREFIX)
    typer.echo(
        f"wrote {written}; try it:\n"
        f"  pip install -e '{written}[test]' && pytest {written}\n"
        f"  omni tiny {plugin} {plugin}-model && omni serve --model-path {plugin}-model"
    )


def write(name: str, directory: Path) -> Path:
    """Write the package below `directory`; its folder. ConfigError for a name that cannot be one,
    and for a folder that is there."""
    plugin = checked_name(name)
    package = f"omni_{plugin.replace('-', '_')}"
    folder = directory / f"{_PREFIX}{plugin}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError as exc:
        raise ConfigError(f"{folder} is there already; nothing was written") from exc
    title = "".join(part.capitalize() for part in plugin.split("-"))
    names = {"__PLUGIN__": plugin, "__PACKAGE__": package, "__TITLE__": title}
    _copy(files(__package__) / "plugin_template", folder, names)
    return folder


def checked_name(name: str) -> str:
    """The name without "omni-" before it; ConfigError for what is no name, or is taken here."""
    plugin = name.removeprefix(_PREFIX)
    if not _NAME.fullmatch(plugin) or len(plugin) > MOST_LETTERS:
        raise ConfigError(
            f"{name!r} cannot be a plugin's name; use up to {MOST_LETTERS} lower-case letters and "
            "digits, words joined by '-', such as 'my-model'"
        )
    package = f"omni_{plugin.replace('-', '_')}"
    if find_spec(package) is not None:
        raise ConfigError(f"{package} is a package that is installed here; choose another name")
    return plugin


def _copy(source: Traversable, target: Path, names: dict[str, str]) -> None:
    for entry in source.iterdir():
        place = target / _with(names, entry.name).removesuffix(_SUFFIX)
        if entry.is_dir():
            place.mkdir()
            _copy(entry, place, names)
        else:
            place.write_text(_with(names, entry.read_text(encoding="utf-8")), encoding="utf-8")


def _with(names: dict[str, str], text: str) -> str:
    for stands, name in names.items():
        text = text.replace(stands, name)
    return text
