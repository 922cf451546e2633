"""`python bench/run.py NAME [--json FILE] [--check]`: every number of the project has a bench here.

A bench is a module beside this one with the functions of `Bench`. It measures ours and what it is
compared with in one run; this module prints the table, keeps the JSON and judges the goals.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from machine import describe_commit, describe_machine
from results import Report, table, unmet

BENCHES: Final[Mapping[str, str]] = {
    "startup": "seconds until `omni serve` is ready, and the memory it holds",
    "engine": "decoding of the AR engine beside transformers' generate, and its own work per step",
    "talker": "speech frames per second of the Talker stage and of the pipeline, without HTTP",
    "ming": "Ming's spoken replies and readings: first audio beside the text, speech per second",
    "vocoder": "incremental decoding beside one-shot decoding: time, error, memory",
    "speech": "speech and text over HTTP, beside another server",
    "compiling": "first text over HTTP while steps are compiled, from an empty cache",
    "gpu.talker": "speech of the published sizes on a card, weights of noise",
    "gpu.relay": "tensors from process to process on a card, pooled and direct",
    "orchestration": "requests and small chunks through three stages that do nothing",
    "relay": "tensors through three stages that do nothing, beside copying them",
    "transport": "one speech request over edges in a process, shared memory and TCP",
    "cache": "repeated prefixes, media and requests: hits, times, memory",
    "realtime": "spoken turns, interruptions and many sessions over WS /v1/realtime, and memory",
    "http": "what HTTP costs over the Python API, each request and each chunk",
    "router": "what a router costs each request and each event, beside the direct way",
    "crowd": "fifty streamed chats and fifty readings at once: first bytes, ends, silences",
}
MODULES: Final[Mapping[str, str]] = {"http": "overhead"}
"""Of benches whose module cannot have their name: a library's has it."""


class Bench(Protocol):
    """What the module of a bench offers."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command line options of this bench."""

    def measure(self, options: argparse.Namespace) -> Report:
        """Run it."""


def main(arguments: list[str]) -> int:
    """Run one bench; 1 if --check is given and a goal is not shown to be reached."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of this process and those it starts
    parser = argparse.ArgumentParser(description="Measure one thing.")
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    chosen_name = next((name for name in arguments if name in BENCHES), None)
    bench = None
    if chosen_name is not None:
        bench = cast(Bench, import_module(MODULES.get(chosen_name, chosen_name)))
    for name, description in BENCHES.items():
        options = names.add_parser(name, help=description, description=description)
        options.add_argument("--json", type=Path, metavar="FILE", help="keep the result there")
        options.add_argument("--check", action="store_true", help="fail if a goal is not reached")
        if bench is not None and name == chosen_name:
            bench.add_options(options)
    chosen = parser.parse_args(arguments)
    assert bench is not None
    machine, commit = describe_machine(), describe_commit()
    report = bench.measure(chosen)
    print(f"{machine}, commit {commit}\n\n{table(report.cases)}")
    if report.notes:
        print(f"\n{report.notes}")
    if chosen.json is not None:
        kept = {"bench": chosen.name, "machine": machine, "commit": commit}
        kept["cases"] = [case.kept() for case in report.cases]
        chosen.json.write_text(json.dumps(kept, indent=2) + "\n")
    missing = unmet(report.cases)
    for sentence in missing:
        print(f"not reached: {sentence}")
    return int(chosen.check and bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
