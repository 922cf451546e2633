"""Fail on files over 800 lines and functions over 200; list those over 400 and 40.

The house limits are 400 and 40; the larger ones are where a reviewer's patience ends.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("packages/*/src/**/*.py", "examples/*/src/**/*.py", "noxfile.py")
HOUSE = {"file": 400, "function": 40}
HARD = {"file": 800, "function": 200}


def sizes() -> Iterator[tuple[str, str, int]]:
    """(kind, where, lines) of every source file and function."""
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text()
            name = str(path.relative_to(ROOT))
            yield "file", name, text.count("\n")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    yield "function", f"{name}:{node.lineno} {node.name}", lines


def main() -> int:
    """Print what is long; 1 if anything is over a hard limit."""
    long = [entry for entry in sizes() if entry[2] > HOUSE[entry[0]]]
    for kind, where, lines in long:
        print(f"{kind} of {lines} lines: {where}")  # noqa: T201 - a command's output
    return int(any(lines > HARD[kind] for kind, _, lines in long))


if __name__ == "__main__":
    sys.exit(main())
