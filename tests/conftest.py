"""What the cross-package tests share: one tiny checkpoint for the whole run, and live servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest

from families import FAMILIES, Family

START_DEADLINE_S = 180.0
READY = "Omni is ready on "

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


def _url_when_ready(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if READY in line:
            return line.partition(READY)[2].strip()
    pytest.fail(f"the server ended with {process.wait()}:\n{log.read_text()}")
