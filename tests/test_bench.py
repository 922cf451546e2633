"""The measuring parts of the benches: process trees, their memory and time, phases of a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import startup
from processes import cpu_seconds, pss_bytes, tree

BENCH = Path(startup.__file__).parent

#: A parent that keeps 50 MB, and a child of it that works, reports and keeps 20 MB.
FAMILY = """
import subprocess, sys
kept = b"x" * 50_000_000
work = 'kept = b"y" * 20_000_000; sum(range(9_000_000)); print("there", flush=True); input()'
subprocess.run([sys.executable, "-c", work])
"""


def test_a_tree_counts_children_with_their_memory_and_time() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "there\n"
        family = tree(parent.pid)
        sizes = [pss_bytes(pid) for pid in family]
        seconds = cpu_seconds(parent.pid)
        parent.communicate("\n")
    assert family[0] == parent.pid
    assert len(family) == 2
    assert sizes[0]["anon"] > 50e6
    assert 20e6 < sizes[1]["anon"] < 50e6
    assert all(size["total"] >= size["anon"] + size["file"] for size in sizes)
    assert 0.05 < seconds < 30


def test_phases_of_one_process_follow_each_other() -> None:
    stages = {"7": ["ears", "eyes"], "8": ["voice"]}
    lines = [
        (1.0, "ears: importing"),
        (1.5, "voice: importing"),
        (2.0, "ears: loading weights 25%"),
        (2.5, "ears: loading weights 75%"),
        (4.0, "eyes: importing"),
        (4.002, "eyes: loading"),
        (5.0, "ears: ready"),
        (5.5, "pipeline: warm-up request"),
        (6.5, "Omni is ready on http://127.0.0.1:1"),
    ]
    found = startup.phases(lines, stages)
    assert [(p["stage"], p["phase"], p["start_s"], p["seconds"]) for p in found["ears + eyes"]] == [
        ("", "start process", 0.0, 1.0),
        ("ears", "importing", 1.0, 1.0),
        ("ears", "loading weights", 2.0, 2.0),
        ("eyes", "loading", 4.002, 5.0 - 4.002),
    ]
    assert [p["phase"] for p in found["voice"]] == ["start process"]
    assert [(p["phase"], p["seconds"]) for p in found[startup.SERVER]] == [
        ("start process", 5.5),
        ("warm-up request", 1.0),
    ]


def test_the_bars_are_judged_by_the_last_start() -> None:
    def start(ready_s: float, *bytes_: float) -> dict[str, object]:
        return {"ready_s": ready_s, "memory": [{"pss": {"total": size}} for size in bytes_]}

    slow_first = {"starts": [start(40.0, 3e9), start(9.0, 0.5e9, 0.2e9)]}
    assert startup.missed(slow_first) == []
    over = {"starts": [start(15.1, 1.5e9, 0.6e9)]}
    assert startup.missed(over) == [
        "ready after 15.1 s, the bar is 15 s",
        "2.10 GB PSS, the bar is 2 GB",
    ]


def test_the_command_lists_its_benches() -> None:
    command = [sys.executable, str(BENCH / "run.py"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "startup" in shown
    assert "Seconds until `omni serve` is ready" in shown
