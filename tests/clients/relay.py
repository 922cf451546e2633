"""A server before the server that remembers what passed: what a gateway asked for, and was given.

Forwards one request of HTTP/1.1 whole and then its answer whole; nothing streams through it.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

PASSED_ON = ("authorization", "content-type")


@dataclass(frozen=True, slots=True)
class Passed:
    """One request that was answered with 200."""

    path: str
    asked: dict[str, Any]
    given: bytes


@dataclass(frozen=True, slots=True)
class Relay:
    """Where it listens, and what has passed."""

    url: str
    passed: list[Passed] = field(default_factory=list)

    def speech(self, response_format: str) -> bytes:
        """The file that was last given to whoever asked for speech in this format."""
        last = next(
            one
            for one in reversed(self.passed)
            if one.path == "/v1/audio/speech"
            and one.asked.get("response_format", "mp3") == response_format
        )
        return from_events(last.given) if "stream_format" in last.asked else last.given


def from_events(body: bytes) -> bytes:
    """The file that `speech.audio.delta` events carry."""
    lines = [line for line in body.decode().splitlines() if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    return b"".join(base64.b64decode(event.get("audio", "")) for event in events)


@contextmanager
def relay_before(served: str, timeout_s: float) -> Iterator[Relay]:
    """Listens on a free loopback port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
            answer = httpx.post(
                served + self.path, content=body, headers=headers, timeout=timeout_s
            )
            if answer.status_code == 200 and self.headers["content-type"] == "application/json":
                passed.append(Passed(self.path, json.loads(body), answer.content))
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["content-type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        relay = Relay(f"http://127.0.0.1:{httpd.server_port}")
        passed = relay.passed
        yield relay
        httpd.shutdown()
