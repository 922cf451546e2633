"""Count and weigh what `pip install omni-server omni-qwen3` brings.

Run as `python -I installed.py` in an environment that holds the wheels and nothing else. The limit
is on the hard dependencies that our wheels name, all together; what those bring along is counted
and printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = frozenset({"omni-core", "omni-qwen3", "omni-server"})
LIMIT = 25


def requirements(wanted: Requirement) -> Iterator[Requirement]:
    """What a distribution needs, with the extras that are asked of it."""
    for line in distribution(wanted.name).requires or ():
        needed = Requirement(line)
        extras = {"", *wanted.extras}
        if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
            yield needed


def closure(*, named_by_us: bool) -> set[str]:
    """Distributions that installing ours installs, without ours; or only those that ours name."""
    waiting = [Requirement(name) for name in sorted(OURS)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        if name in OURS or not named_by_us:
            waiting += requirements(wanted)
    return {name for name, _ in seen} - OURS


def size_mib(package: Distribution) -> float:
    """Size of a distribution's files."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1024**2


def main() -> int:
    """Print the counts and sizes; 1 if we name more than the limit."""
    named, everything = closure(named_by_us=True), closure(named_by_us=False)
    for name in sorted(OURS):
        print(f"{size_mib(distribution(name)):8.2f} MiB  {name}, installed")
    print(f"{sum(size_mib(distribution(n)) for n in everything):8.0f} MiB  everything beside ours")
    print(f"{len(named)} distributions named by our wheels: {', '.join(sorted(named))}")
    print(f"{len(everything)} installed with what those bring along")
    return int(len(named) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
