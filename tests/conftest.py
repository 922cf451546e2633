"""What the cross-package tests share: one tiny checkpoint for the whole run, and live servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest

from families import FAMILIES, Family

START_DEADLINE_S = 180.0
READY = "Omni is ready on "
ROUTER_READY = "Omni router is ready on "

collect_ignore = ["api", "clients", "outsider", "playground", "spoken"]
"""What needs more than our packages; `nox -s` of these names runs it."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of the checkpoint the stored references were made with."""
    from omni_qwen3.tiny import build  # here, so that `nox -s layers` runs without our packages

    directory: Path = tmp_path_factory.mktemp("tiny")
    build(str(directory), seed=0)
    return str(directory)


@pytest.fixture(scope="module", params=FAMILIES)
def server_family(request: pytest.FixtureRequest) -> Family:
    """Each in turn."""
    return FAMILIES[request.param]


@pytest.fixture(scope="session")
def live_server(
    tmp_path_factory: pytest.TempPathFactory, ar_engine: str
) -> Callable[..., AbstractContextManager[httpx.Client]]:
    """`omni serve CHECKPOINT ARGUMENTS` on a free loopback port: a context manager of its client.

    Waits for the line that says so; should there be none, the log is the message.
    """

    @contextmanager
    def serving(checkpoint: str, *arguments: str) -> Iterator[httpx.Client]:
        log = tmp_path_factory.mktemp("server") / "log"
        command = [
            sys.executable,
            "-m",
            "omni_server",
            "serve",
            "--model-path",
            checkpoint,
            "--compile",
            "off",
        ]
        command += ["--port", "0", "--device", "cpu", "--dtype", "float32"]
        command += ["--ar-engine", ar_engine, *arguments]
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                url = _url_when_ready(process, log)
                with httpx.Client(base_url=url, timeout=START_DEADLINE_S) as http:
                    yield http
            finally:
                process.terminate()
                process.communicate(timeout=60)

    return serving


@pytest.fixture(scope="session")
def live_router(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., AbstractContextManager[str]]:
    """`omni-router` before these workers, by these settings: a context manager of its URL.

    Waits until all workers take requests.
    """

    @contextmanager
    def routing(*workers: str, **settings: object) -> Iterator[str]:
        place = tmp_path_factory.mktemp("router")
        log, config = place / "log", place / "router.json"  # JSON is YAML
        config.write_text(json.dumps({"workers": workers, "port": 0, **settings}))
        command = [sys.executable, "-m", "omni_router", "--config", str(config)]
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                url = _url_when_ready(process, log, ROUTER_READY)
                _wait_for_workers(url, log)
                yield url
            finally:
                process.terminate()
                process.communicate(timeout=60)

    return routing


def _wait_for_workers(url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_DEADLINE_S
    while httpx.get(f"{url}/health").json()["status"] != "ready":
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)


def _url_when_ready(process: subprocess.Popen[str], log: Path, ready: str = READY) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if ready in line:
            return line.partition(ready)[2].strip()
    pytest.fail(f"the server ended with {process.wait()}:\n{log.read_text()}")
