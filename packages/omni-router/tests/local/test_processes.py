"""Several processes of one router on one port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

Launched = Callable[..., Any]
PlainWorker = Callable[..., str]
ADMIN = "a-key-of-operators"
OF_A_WORKER = re.compile(r'worker="127[^"]+",status="200"|status="200",worker="127')
TIMES = 12
"""Connections, so that each of two processes gets some (but for one run in 2,000)."""


def written(file: Path, **workers: str) -> str:
    """A --config file of these workers."""
    listed = [{"name": name, "url": url} for name, url in workers.items()]
    file.write_text(json.dumps({"workers": listed}))  # which is YAML as well
    return str(file)


def test_one_that_dies_is_missed_by_nobody_for_long(
    launched: Launched, plain_worker: PlainWorker
) -> None:
    with launched("--processes", "2", "--worker", plain_worker()) as router:
        router.until(lambda: len(router.routers()) == 2, "both run")
        router.until(lambda: all(router.answers() for _ in range(TIMES)), "both know the worker")
        first, second = router.routers()
        os.kill(first, signal.SIGKILL)
        router.until(lambda: first not in router.routers(), "it is dead")
        router.until(lambda: len(router.routers()) == 2, "another has its place")
        router.until(lambda: all(router.answers() for _ in range(TIMES)), "both answer")
        assert second in router.routers()
        assert "router process 0 has ended: killed by signal 9" in router.said()
        children = router.children()
        router.process.kill()
        router.until(lambda: router.are_gone(children), "the processes end with their parent")


def test_operators_are_told_to_change_the_file_and_sighup_reads_it(
    launched: Launched, plain_worker: PlainWorker, tmp_path: Path
) -> None:
    one, two = plain_worker(), plain_worker("--answers-after", "1")
    file = written(tmp_path / "router.yaml", a=one)
    with launched("--processes", "2", "--config", file, OMNI_ADMIN_KEY=ADMIN) as router:
        router.until(lambda: all(router.are_ready("a") for _ in range(TIMES)), "both know it")
        for body in ({"name": "b", "url": two}, {"name": "a", "url": one}):
            told = refusal(router, "/router/v1/workers", body)
            assert told["code"] == "several_processes"
            assert "change the --config file and send SIGHUP" in told["message"]
        told = refusal(router, "/router/v1/weights", {"path": "step-200"})
        assert told["code"] == "several_processes"
        assert "give new weights to each worker itself" in told["message"]

        written(tmp_path / "router.yaml", a=one, b=two)
        router.process.send_signal(signal.SIGHUP)
        both = ("a", "b")
        router.until(lambda: all(router.are_ready(*both) for _ in range(TIMES)), "both know both")

        (tmp_path / "router.yaml").write_text("wrokers: []")
        router.process.send_signal(signal.SIGHUP)
        router.until(lambda: "did you mean workers?" in router.said(), "it is told")
        assert all(router.are_ready(*both) for _ in range(TIMES))

        written(tmp_path / "router.yaml", b=two)
        router.process.send_signal(signal.SIGHUP)
        router.until(lambda: all(router.are_ready("b") for _ in range(TIMES)), "one is forgotten")
        os.kill(router.routers()[0], signal.SIGKILL)
        router.until(lambda: "has ended" in router.said(), "one process is dead")
        router.until(lambda: len(router.routers()) == 2, "another has its place")
        assert all(set(router.states()) == {"b"} for _ in range(TIMES))


def test_ctrl_c_drains_all(launched: Launched, plain_worker: PlainWorker) -> None:
    url = plain_worker("--answers-after", "1")
    with launched("--processes", "2", "--worker", url) as router, ThreadPoolExecutor(TIMES) as pool:
        router.until(lambda: all(router.are_ready(netloc(url)) for _ in range(TIMES)), "ready")
        replies = [pool.submit(router.chat) for _ in range(TIMES)]
        time.sleep(0.5)
        os.killpg(router.process.pid, signal.SIGINT)  # as a terminal sends it: to all that it has
        assert router.process.wait(20) == 0
        assert len({reply.result()["pid"] for reply in replies}) == 1


def test_bounds_are_kept_by_all_together(launched: Launched, plain_worker: PlainWorker) -> None:
    url = plain_worker("--answers-after", "0.1")
    own = ("--processes", "2", "--max-in-flight-per-worker", "5", "--queue-timeout-s", "20")
    with launched(*own, "--worker", url) as router, ThreadPoolExecutor(24) as pool:
        router.until(lambda: all(router.are_ready(netloc(url)) for _ in range(TIMES)), "ready")
        replies = list(pool.map(lambda _: router.chat(), range(48)))
        assert max(reply["peak"] for reply in replies) == 4  # 5 // 2 for each


def test_each_has_a_port_where_it_answers_alone(
    launched: Launched, plain_worker: PlainWorker, free_ports: Callable[[int], int]
) -> None:
    first = free_ports(2)
    own = ("--processes", "2", "--process-port", str(first), "--worker", plain_worker())
    with launched(*own) as router:
        router.until(lambda: all(router.answers() for _ in range(TIMES)), "both know the worker")
        shared, counts = router.url, []
        for port in (first, first + 1):
            router.url = f"http://127.0.0.1:{port}"
            router.until(lambda: router.answers(), "it answers")
            counts.append(chats_counted(router.url))
            assert chats_counted(router.url) == counts[-1]
        assert min(counts) > 0
        router.url = shared
        assert router.answers()
        again = [chats_counted(f"http://127.0.0.1:{port}") for port in (first, first + 1)]
        assert sum(again) == sum(counts) + 1


def test_a_port_that_others_share_is_refused(launched: Launched, plain_worker: PlainWorker) -> None:
    with launched("--processes", "2", "--worker", plain_worker()) as router:
        port = router.url.rpartition(":")[2]
        command = [sys.executable, "-m", "omni_router", "--processes", "2", "--port", port]
        again = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert again.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in again.stderr


def test_a_bound_that_cannot_be_shared_is_refused() -> None:
    command = [sys.executable, "-m", "omni_router", "--processes", "4"]
    command += ["--max-in-flight-per-worker", "3"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 2
    assert "max_in_flight_per_worker must be at least --processes" in refused.stderr


def refusal(router: Any, path: str, body: Any) -> dict[str, Any]:
    """The error of a request that must be refused."""
    with pytest.raises(urllib.request.HTTPError) as refused:
        router.ask(path, body, is_admin=True)
    assert refused.value.code == 409
    found: dict[str, Any] = json.load(refused.value)["error"]
    return found


def chats_counted(url: str) -> float:
    """Requests that the process at this address says workers have answered with 200."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("omni_router_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if OF_A_WORKER.search(line))


def netloc(url: str) -> str:
    """The name of a worker that has none."""
    return url.removeprefix("http://")
