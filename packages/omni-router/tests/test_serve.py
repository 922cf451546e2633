"""The router as a process: its start, its signals and its end."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

READY = "Omni router is ready on "
MODELS = {"object": "list", "data": [{"id": "m", "created": 1}]}
Start = Callable[..., tuple[subprocess.Popen[str], str]]


class Backend(BaseHTTPRequestHandler):
    """Answers at once, or after a while where the body says so."""

    protocol_version = "HTTP/1.1"
    began = threading.Event()

    def do_GET(self) -> None:
        self.answer(MODELS if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "slow_s" in body:
            Backend.began.set()
            time.sleep(body["slow_s"])
        self.answer({"done": True})

    def answer(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def backend() -> Iterator[str]:
    Backend.began.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "omni_router", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), process.communicate(timeout=5)
        return process, line.removeprefix(READY).strip()

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def get(url: str, **more: Any) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10, **more) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def chat(url: str, **body: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    return get(request)  # type: ignore[arg-type]


def until_ready(url: str, **more: Any) -> None:
    for _ in range(100):
        if get(f"{url}/ready", **more)[0] == 200:
            return
        time.sleep(0.05)
    raise AssertionError(get(f"{url}/ready", **more))


def test_it_serves_and_ends(start: Start, backend: str) -> None:
    process, url = start("--worker", backend, "--access-log", "-")
    until_ready(url)
    assert chat(url) == (200, {"done": True})
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["status"] for line in lines if line["method"] == "POST"] == [200]


def test_the_port_answers_whatever_workers_do(start: Start) -> None:
    _, url = start("--worker", "http://127.0.0.1:9")
    assert get(f"{url}/live") == (200, {"status": "live"})
    assert get(f"{url}/ready")[0] == 503
    assert chat(url)[0] == 503


def test_sigterm_drains(start: Start, backend: str) -> None:
    process, url = start("--worker", backend)
    until_ready(url)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(chat(url, slow_s=1.0)))
    thread.start()
    assert Backend.began.wait(5)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    status, told = chat(url)
    assert (status, told["error"]["code"]) == (503, "draining"), "it still answers, if only no"
    thread.join()
    assert answers == [(200, {"done": True})]
    assert process.wait(10) == 0


def test_the_drain_has_an_end(start: Start, backend: str) -> None:
    process, url = start("--worker", backend, "--drain-timeout-s", "0.3")
    until_ready(url)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(chat(url, slow_s=20)))
    thread.start()
    assert Backend.began.wait(5)
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert time.monotonic() - began_s < 3
    thread.join(5)
    [(status, told)] = answers
    assert status == 502
    assert "the router is shutting down" in told["error"]["message"]


def test_a_second_signal_kills(start: Start, backend: str) -> None:
    process, url = start("--worker", backend)
    until_ready(url)
    threading.Thread(target=lambda: _ignored(url), daemon=True).start()
    assert Backend.began.wait(5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(2) == 130


def _ignored(url: str) -> None:
    try:
        chat(url, slow_s=20)
    except (OSError, ValueError):
        return


def test_it_speaks_tls(start: Start, backend: str, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    _, url = start("--worker", backend, "--tls-cert", str(cert), "--tls-key", str(key))
    assert url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(cert))
    until_ready(url, context=trusting)
    # A router before a router: the second one knows the first by its certificate.
    _, outer = start("--worker", url, "--worker-ca", str(cert))
    until_ready(outer)
    assert chat(outer) == (200, {"done": True})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", "best"), "--policy"),
        (("--tls-cert", "/none", "--tls-key", "/none"), "cannot be used"),
        (("--worker-ca", "/none"), "--worker-ca"),
        (("--access-log", "/none/x"), "access_log"),
        (("--api-key-file", "/none"), "api_key_file"),
        (("--host", "203.0.113.1"), "cannot listen"),
    ],
)
def test_what_cannot_be_ends_with_2_and_says_why(arguments: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", "omni_router", "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_is_told() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "omni_router", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
