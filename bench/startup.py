"""Seconds until `omni serve` is ready, and the memory it then holds, in the CPU default layout.

Beside it, what transformers takes to load the same checkpoint in one process. A start is warm when
the files it reads are in the page cache, so the last of several starts is the one that counts.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from checkpoint import build_tiny
from processes import cpu_seconds, pss_bytes, tree
from results import Case, Report
from servers import STOP_S, Server, child, omni_server

READY_GOAL_S: Final = 15.0
PSS_GOAL_MB: Final = 2000.0
OTHER: Final = "transformers, one process"
SHOWN_S: Final = 0.005
"""Shorter phases are left out."""
SERVER: Final = "HTTP and coordinator"
START: Final = "start process"

#: Loads everything a request needs with transformers alone, then waits for its stdin to close.
TRANSFORMERS: Final = """
import sys
from transformers import (
    Qwen2Tokenizer, Qwen3OmniMoeForConditionalGeneration as Model, WhisperFeatureExtractor as Mel,
)
kept = [kind.from_pretrained(sys.argv[1]) for kind in (Qwen2Tokenizer, Mel, Model)]
print("ready", flush=True)
sys.stdin.read()
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--checkpoint", help="serve this one; a tiny one is built if left out")
    parser.add_argument("--starts", type=int, default=2, help="how often to start (default 2)")
    parser.add_argument(
        "--settle-s", type=float, default=60.0, help="memory is read so long after ready (60)"
    )
    parser.add_argument(
        "--no-comparison", action="store_true", help="leave transformers out of the run"
    )


def measure(options: argparse.Namespace) -> Report:
    """Start the server `starts` times; memory is read at the last start."""
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = options.checkpoint or build_tiny(Path(workshop, "tiny"))
        starts = [
            start(checkpoint, settle_s=options.settle_s if last else 0.0)
            for last in (number == options.starts for number in range(1, options.starts + 1))
        ]
        other = None
        if not options.no_comparison:
            load_with_transformers(checkpoint)  # warms the page cache, as the first start does
            other = load_with_transformers(checkpoint)
    notes = [*phase_rows(starts[-1]), "", *memory_rows(starts[-1], options.settle_s)]
    return Report(cases=cases(starts, other), notes="\n".join(notes))


def start(checkpoint: str, *, settle_s: float) -> dict[str, Any]:
    """One start: seconds to ready, CPU seconds, phases of every stage, memory of every process."""
    with omni_server(checkpoint) as server:
        ready_s, cpu_s = server.ready_s, cpu_seconds(server.pid)
        time.sleep(settle_s)
        memory = [
            {"process": name_of(pid, server), "pss": pss_bytes(pid)} for pid in tree(server.pid)
        ]
    return {
        "ready_s": ready_s,
        "cpu_s": cpu_s,
        "phases": phases(server.lines, server.stages),
        "memory": memory,
    }


def load_with_transformers(checkpoint: str) -> dict[str, Any]:
    """Seconds, CPU seconds and memory of one Python process that loads model and processors."""
    began = time.monotonic()
    with child([sys.executable, "-c", TRANSFORMERS, checkpoint]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("transformers did not load the checkpoint; its error is above")
        ready_s, cpu_s = time.monotonic() - began, cpu_seconds(process.pid)
        pss = pss_bytes(process.pid)
        process.stdin.close()
        process.wait(STOP_S)
    return {"ready_s": ready_s, "cpu_s": cpu_s, "pss": pss}


def name_of(pid: int, server: Server) -> str:
    """What a process is, by the stages in it."""
    return SERVER if pid == server.pid else " + ".join(server.stages.get(str(pid), ["other"]))


def phases(
    lines: list[tuple[float, str]], stages: dict[str, list[str]]
) -> dict[str, list[dict[str, Any]]]:
    """{process: what its stages did, when and for how long}, from lines "STAGE: DOING [N%]".

    A process builds its stages one after the other, so a phase lasts until the next report of any
    stage in it. The pipeline reports its warm-up request itself, and then that it is ready.
    """
    process_of = {stage: " + ".join(group) for group in stages.values() for stage in group}
    found: dict[str, list[dict[str, Any]]] = {}
    for at_s, line in lines:
        match = re.fullmatch(r"(\w+): (.*?)( \d+%)?", line)
        stage, phase = (match[1], match[2]) if match else ("pipeline", line)
        done = found.setdefault(
            process_of.get(stage, SERVER), [{"stage": "", "phase": START, "start_s": 0.0}]
        )
        if (done[-1]["stage"], done[-1]["phase"]) != (stage, phase):
            done[-1]["seconds"] = at_s - done[-1]["start_s"]
            done.append({"stage": stage, "phase": phase, "start_s": at_s})
    return {
        process: [entry for entry in done if entry.get("seconds", 0.0) >= SHOWN_S]
        for process, done in found.items()
    }


def cases(starts: list[dict[str, Any]], other: dict[str, Any] | None) -> tuple[Case, ...]:
    """The last start against the goals and beside transformers; the earlier ones to be known."""
    last = starts[-1]
    pss_mb = sum(entry["pss"]["total"] for entry in last["memory"]) / 1e6
    found = [
        Case(case=f"ready, start {number}", unit="s", ours=cold["ready_s"], better="less")
        for number, cold in enumerate(starts[:-1], 1)
    ]
    found += [
        Case(case="ready, warm", unit="s", ours=last["ready_s"], goal=READY_GOAL_S, better="less"),
        Case(case="memory (PSS)", unit="MB", ours=pss_mb, goal=PSS_GOAL_MB, better="less"),
    ]
    if other is not None:
        beside = {
            "ready, beside": (last["ready_s"], other["ready_s"], "s"),
            "CPU time, beside": (last["cpu_s"], other["cpu_s"], "s"),
            "memory (PSS), beside": (pss_mb, other["pss"]["total"] / 1e6, "MB"),
        }
        found += [
            Case(case=case, unit=unit, ours=ours, other=others, other_name=OTHER, better="less")
            for case, (ours, others, unit) in beside.items()
        ]
    return tuple(found)


def phase_rows(start: dict[str, Any]) -> list[str]:
    """Seconds per phase of every process."""
    rows = [f"{'stage':<16}{'phase':<38}{'from s':>8}{'seconds':>9}"]
    for process, done in start["phases"].items():
        rows.append(f"-- {process}")
        rows += [
            f"{entry['stage']:<16}{entry['phase']:<38}{entry['start_s']:8.2f}{entry['seconds']:9.2f}"
            for entry in done
        ]
    return rows


def memory_rows(start: dict[str, Any], settle_s: float) -> list[str]:
    """Proportional set size of every process, and their sum."""
    head = f"PSS in MB, {settle_s:.0f} s after ready"
    parts = ("anon", "file", "shmem", "total")
    rows = [f"{head:<64}" + "".join(f"{part:>8}" for part in parts)]
    processes = [(entry["process"], entry["pss"]) for entry in start["memory"]]
    total = {part: sum(pss[part] for _, pss in processes) for part in parts}
    for name, pss in [*processes, ("all", total)]:
        rows.append(f"{name:<64}" + "".join(f"{pss[part] / 1e6:8.0f}" for part in parts))
    return rows
