"""A worker for tests of what starts workers: says who it is, with nothing but the standard library.

Run as `python plain_worker.py serve [--dies-after S] [--says TEXT] [--ignores-sigterm]
[--answers-after S] --host H --port N`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STARTED_S = time.time()


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 128
    daemon_threads = True


class Answers(BaseHTTPRequestHandler):
    """Every path has an answer."""

    protocol_version = "HTTP/1.1"
    answers_after_s = 0.0
    lock = threading.Lock()
    inside = 0
    peak = 0

    def do_GET(self) -> None:
        """Probes, and the list of models."""
        if self.path == "/v1/models":
            model = {"id": "plain", "object": "model", "created": STARTED_S}
            self._answer({"object": "list", "data": [model]})
        else:
            self._answer({"status": "ready"})
            if self.path == "/live":
                say("it was asked whether it lives")

    def do_POST(self) -> None:
        """Who this is."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with Answers.lock:
            Answers.inside += 1
            Answers.peak = max(Answers.peak, Answers.inside)
        time.sleep(self.answers_after_s)
        with Answers.lock:
            Answers.inside -= 1
        names = ("CUDA_VISIBLE_DEVICES", "OMNI_API_KEYS", "OMNI_WORKER_KEY")
        self._answer(
            {
                "pid": os.getpid(),
                "peak": Answers.peak,
                "arguments": sys.argv[1:],
                "environment": {name: os.environ.get(name) for name in names},
            }
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _answer(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def say(line: str) -> None:
    """To the log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until SIGTERM."""
    options = argparse.ArgumentParser()
    options.add_argument("command")
    options.add_argument("--host")
    options.add_argument("--port", type=int)
    options.add_argument("--says", default="")
    options.add_argument("--dies-after", type=float)
    options.add_argument("--answers-after", type=float, default=0.0)
    options.add_argument("--ignores-sigterm", action="store_true")
    options.add_argument("--has-a-child", action="store_true")
    asked = options.parse_args()
    say(asked.says)
    if asked.dies_after is not None:
        time.sleep(asked.dies_after)
        sys.exit(3)
    if asked.has_a_child:
        child = subprocess.Popen(["sleep", "300"])
        say(f"child {child.pid}")
    Answers.answers_after_s = asked.answers_after
    server = Server((asked.host, asked.port), Answers)
    if asked.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    say("it has ended in order")


if __name__ == "__main__":
    main()
