"""`omni-router --launch` of real servers: they answer through it, and end with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

READY = "Omni router is ready on "
DEADLINE_S = 120.0
QUICK = ("--probe-interval-s", "0.2", "--port", "0")
TINY = ("--device", "cpu", "--dtype", "float32", "--compile", "off", "--text-only")


@pytest.fixture
def router(tiny_checkpoint: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a router that launches one server, and its URL."""
    command = [sys.executable, "-m", "omni_router", *QUICK, "--launch", "1"]
    command += ["--log-dir", str(tmp_path), "--", "--model-path", tiny_checkpoint, *TINY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().removeprefix(READY).strip()
        finally:
            process.kill()


def until(is_so: Callable[[], object], what: str) -> None:
    """Fails if it is not so after a while."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s, what
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """Processes that it has started, and those that these have."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, found) for one in (child, *descendants(child))]


def lives(pid: int) -> bool:
    """Whether it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sigkill_of_the_router_leaves_nothing_of_a_server(
    router: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, url = router
    log = tmp_path / "worker-0.log"
    with httpx.Client(base_url=url, timeout=DEADLINE_S) as http:
        until(lambda: http.get("/ready").status_code == 200, f"it is ready: see {log}")
        [model] = http.get("/v1/models").json()["data"]
        question = {"role": "user", "content": "Say hello."}
        asked = {"model": model["id"], "messages": [question], "max_tokens": 4}
        reply = http.post("/v1/chat/completions", json=asked)
    assert reply.json()["usage"]["completion_tokens"] == 4
    assert reply.headers["x-omni-worker"] == "worker-0"

    started = descendants(process.pid)
    runs = [run for run in Path("/dev/shm").glob("omni-*") if of(run) in started]
    assert len(started) > 2
    assert runs
    process.kill()
    until(lambda: not any(map(lives, started)), "all processes end")
    until(lambda: not any(run.exists() for run in runs), "their shared memory is freed")


def of(run: Path) -> int:
    """The process whose directory it is, which stands in its name."""
    return int(run.name.split("-")[1])
