"""Seconds until `omni serve` is ready, and the memory it then holds, in the CPU default layout.

Beside it, what transformers takes to load the same checkpoint in one process. A start is warm when
the files it reads are in the page cache, so the last of several starts is the one that counts.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from processes import cpu_seconds, pss_bytes, tree

READY_BAR_S: Final = 15.0
PSS_BAR_BYTES: Final = 2e9
POLL_S: Final = 0.05
GIVE_UP_S: Final = 300.0
STOP_S: Final = 30.0
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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server `starts` times; memory is read at the last start."""
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = options.checkpoint or build_tiny(workshop)
        starts = [
            start(checkpoint, settle_s=options.settle_s if last else 0.0)
            for last in (number == options.starts for number in range(1, options.starts + 1))
        ]
        result: dict[str, Any] = {"settle_s": options.settle_s, "starts": starts}
        if not options.no_comparison:
            load_with_transformers(checkpoint)  # warms the page cache, as the first start does
            result["transformers"] = load_with_transformers(checkpoint)
    return result


def build_tiny(workshop: str) -> str:
    """A tiny checkpoint in a directory below `workshop`."""
    directory = str(Path(workshop) / "tiny")
    subprocess.run([sys.executable, "-m", "omni_server", "tiny", "qwen3", directory], check=True)
    return directory


def start(checkpoint: str, *, settle_s: float) -> dict[str, Any]:
    """One start: seconds to ready, CPU seconds, phases of every stage, memory of every process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["serve", "--device", "cpu", "--port", str(port), "--model-path", checkpoint]
    with child([sys.executable, "-m", "omni_server", *arguments]) as server:
        news = News(server)
        stages = until_ready(server, f"http://127.0.0.1:{port}/health", news)
        ready_s, cpu_s = time.monotonic() - news.began, cpu_seconds(server.pid)
        time.sleep(settle_s)
        memory = [
            {"process": name_of(pid, server.pid, stages), "pss": pss_bytes(pid)}
            for pid in tree(server.pid)
        ]
    return {
        "ready_s": ready_s,
        "cpu_s": cpu_s,
        "phases": phases(news.lines, stages),
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


@contextmanager
def child(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process whose stdout is a pipe; interrupted at the end, and killed if it stays."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


class News:
    """The lines a server prints, each with its time."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        """(seconds since the start, line)."""
        self._server = server
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self.lines.append((time.monotonic() - self.began, line.rstrip()))


def until_ready(server: subprocess.Popen[str], url: str, news: News) -> dict[str, list[str]]:
    """Ask until /health says 200; {pid: names of the stages in that process}."""
    while time.monotonic() - news.began < GIVE_UP_S and server.poll() is None:
        try:
            with urllib.request.urlopen(url) as reply:
                health = json.load(reply)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(POLL_S)
            continue
        stages: dict[str, list[str]] = {}
        for name, stage in health["stages"].items():
            stages.setdefault(str(stage["pid"]), []).append(name)
        return stages
    printed = "\n".join(line for _, line in news.lines)
    raise SystemExit(f"the server did not get ready; it printed:\n{printed}")


def name_of(pid: int, server: int, stages: dict[str, list[str]]) -> str:
    """What a process is, by the stages in it."""
    return SERVER if pid == server else " + ".join(stages.get(str(pid), ["other"]))


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


def table(result: dict[str, Any]) -> str:
    """Starts, phases, memory, comparison."""
    lines = [f"{'start':<34}{'ready s':>9}{'CPU s':>8}"]
    for number, start in enumerate(result["starts"], 1):
        lines.append(
            f"{f'omni serve, start {number}':<34}{start['ready_s']:9.1f}{start['cpu_s']:8.1f}"
        )
    last = result["starts"][-1]
    if other := result.get("transformers"):
        lines.append(
            f"{'transformers, one process':<34}{other['ready_s']:9.1f}{other['cpu_s']:8.1f}"
        )
        ratio = last["ready_s"] / other["ready_s"], last["cpu_s"] / other["cpu_s"]
        lines.append(f"{'ours / transformers':<34}{ratio[0]:9.2f}{ratio[1]:8.2f}")
    return "\n".join([*lines, "", *phase_rows(last), "", *memory_rows(result)])


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


def memory_rows(result: dict[str, Any]) -> list[str]:
    """Proportional set size of every process, and their sum."""
    head = f"PSS in MB, {result['settle_s']:.0f} s after ready"
    parts = ("anon", "file", "shmem", "total")
    rows = [f"{head:<64}" + "".join(f"{part:>8}" for part in parts)]
    processes = [(entry["process"], entry["pss"]) for entry in result["starts"][-1]["memory"]]
    total = {part: sum(pss[part] for _, pss in processes) for part in parts}
    processes.append(("all", total))
    if other := result.get("transformers"):
        processes.append(("transformers, one process", other["pss"]))
    for name, pss in processes:
        rows.append(f"{name:<64}" + "".join(f"{pss[part] / 1e6:8.0f}" for part in parts))
    return rows


def missed(result: dict[str, Any]) -> list[str]:
    """The bars of a warm start: 15 s to ready, 2 GB in all."""
    last = result["starts"][-1]
    found = []
    if last["ready_s"] > READY_BAR_S:
        found.append(f"ready after {last['ready_s']:.1f} s, the bar is {READY_BAR_S:.0f} s")
    pss = sum(entry["pss"]["total"] for entry in last["memory"])
    if pss > PSS_BAR_BYTES:
        found.append(f"{pss / 1e9:.2f} GB PSS, the bar is {PSS_BAR_BYTES / 1e9:.0f} GB")
    return found
