"""`python bench/run.py NAME [--json FILE] [--check]`: every number of the project has a bench here.

A bench is a module beside this one with the functions of `Bench`. It measures ours and what it is
compared with in one run; this module prints the table, keeps the JSON and judges the bars.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from machine import describe_machine

BENCHES = ("startup",)


class Bench(Protocol):
    """What the module of a bench offers."""

    __doc__: str | None

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command line options of this bench."""

    def measure(self, options: argparse.Namespace) -> dict[str, Any]:
        """Run it; the result is what --json keeps."""

    def table(self, result: dict[str, Any]) -> str:
        """The result for a person to read."""

    def missed(self, result: dict[str, Any]) -> list[str]:
        """A sentence for each bar that the result misses."""


def main(arguments: list[str]) -> int:
    """Run one bench; 1 if --check is given and a bar is missed."""
    parser = argparse.ArgumentParser(description="Measure one thing.")
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    benches = {name: cast(Bench, import_module(name)) for name in BENCHES}
    for name, bench in benches.items():
        first_line = (bench.__doc__ or "").partition("\n")[0]
        options = names.add_parser(name, help=first_line, description=first_line)
        options.add_argument("--json", type=Path, metavar="FILE", help="keep the result there")
        options.add_argument("--check", action="store_true", help="fail if a bar is missed")
        bench.add_options(options)
    chosen = parser.parse_args(arguments)
    bench = benches[chosen.name]
    machine = describe_machine()
    result = bench.measure(chosen)
    print(f"{machine}\n\n{bench.table(result)}")
    if chosen.json is not None:
        kept = {"bench": chosen.name, "machine": machine, **result}
        chosen.json.write_text(json.dumps(kept, indent=2) + "\n")
    missed = bench.missed(result)
    for sentence in missed:
        print(f"missed: {sentence}")
    return int(chosen.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
