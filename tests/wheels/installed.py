"""Count and weigh what `pip install omni-server omni-qwen3` brings.

Run as `python -I installed.py` in an environment that holds the wheels and nothing else. The limit
is on what we are answerable for: every distribution, at any depth, that is there because of us and
would not be there for torch and for what any reader of Hugging Face checkpoints needs.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = ("omni-core", "omni-qwen3", "omni-server")
FRAMEWORKS = ("torch", "huggingface-hub", "tokenizers")
LIMIT = 25


def closure(roots: tuple[str, ...]) -> set[str]:
    """Names of the distributions that installing `roots` installs, extras followed."""
    waiting = [Requirement(name) for name in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        for line in distribution(wanted.name).requires or ():
            needed = Requirement(line)
            extras = {"", *wanted.extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    return {name for name, _ in seen}


def size_mib(package: Distribution) -> float:
    """Size of a distribution's files."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1024**2


def main() -> int:
    """Print the counts and sizes; 1 if we bring more than the limit."""
    everything = closure(OURS)
    mine = everything - closure(FRAMEWORKS) - set(FRAMEWORKS) - set(OURS)
    for name in OURS:
        print(f"{size_mib(distribution(name)):8.2f} MiB  {name}, installed")
    print(f"{sum(size_mib(distribution(n)) for n in everything):8.0f} MiB  everything")
    print(f"{len(everything) - len(OURS)} distributions beside ours")
    print(f"{len(mine)} of them not for {', '.join(FRAMEWORKS)}: {', '.join(sorted(mine))}")
    return int(len(mine) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
