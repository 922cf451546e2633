"""Print constraints/lowest.txt: the lowest version that our packages declare of each dependency.

`python tests/lowest_versions.py > constraints/lowest.txt` after changing a bound; a test compares.
Knows pyproject files only.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# The lowest version that our packages declare of each dependency, for `nox -s minimums`. Written by
# `python tests/lowest_versions.py`: change the bounds in the pyproject files instead.
# torch is the exception, at the pin of cpu.txt: an index gives older releases as CUDA builds of
# several gigabytes only, which is not what a CPU machine can test.
"""
PINNED = re.compile(r"[\w-]+==[\d.]+")
DECLARED = re.compile(r"(?P<name>[\w-]+)(\[[\w,]+\])?>=(?P<lowest>[\d.]+)(,<[\d.]+)?")
FROM_CPU_PINS = ("torch",)


def lowest_versions() -> dict[str, str]:
    """{distribution: version}; of two bounds, the higher, which both packages together get."""
    lowest: dict[str, str] = {}
    for requirement in requirements():
        if PINNED.fullmatch(requirement):
            continue  # one release and no other has no lowest version
        declared = DECLARED.fullmatch(requirement)
        if declared is None:
            raise ValueError(
                f"{requirement!r} is not NAME>=VERSION, NAME>=VERSION,<NEXT or NAME==VERSION"
            )
        name = declared["name"]
        if not name.startswith("omni-"):
            lowest[name] = max(lowest.get(name, "0"), declared["lowest"], key=ordered)
    return lowest | {name: cpu_pin(name) for name in FROM_CPU_PINS}


def requirements() -> list[str]:
    """Every requirement of every package, those of extras included."""
    found: list[str] = []
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        found += project["dependencies"]
        for extra in project.get("optional-dependencies", {}).values():
            found += extra
    return found


def ordered(version: str) -> tuple[int, ...]:
    """A version as something that sorts."""
    return tuple(map(int, version.split(".")))


def cpu_pin(name: str) -> str:
    """The version of a distribution in constraints/cpu.txt."""
    pins = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    return next(pin for pin in pins if pin.startswith(f"{name}==")).partition("==")[2]


def text() -> str:
    """The whole file."""
    pins = sorted(lowest_versions().items())
    return HEADER + "".join(f"{name}=={version}\n" for name, version in pins)


if __name__ == "__main__":
    sys.stdout.write(text())
