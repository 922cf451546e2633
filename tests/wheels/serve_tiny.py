"""Build, serve and ask a tiny checkpoint with what is installed, over plain HTTP.

Run as `python -I serve_tiny.py TREE [PLUGIN]` from an empty directory, in an environment that holds
wheels and nothing of TREE, the checkout that must not be imported from. PLUGIN is qwen3 or another
that builds a tiny checkpoint.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OMNI = str(Path(sys.executable).with_name("omni"))
READY = "Omni is ready on "
WITHIN_S = 300.0
BODY = {
    "messages": [{"role": "user", "content": "Hello"}],
    "modalities": ["text", "audio"],
    "audio": {"format": "wav"},
}
MOST_TOKENS = 24
"""Of each stage: random weights may never end by themselves."""


def check_origin(tree: Path, plugin: str) -> None:
    """The modules come from this environment, and the tree is on nobody's path."""
    for module in ("omni_core", "omni_server", f"omni_{plugin.replace('-', '_')}"):
        spec = find_spec(module)
        assert spec is not None, f"{module} is not installed"
        assert spec.origin is not None, module
        assert Path(spec.origin).is_relative_to(sys.prefix), f"{module} comes from {spec.origin}"
    child = [sys.executable, "-c", "import omni_server, sys; print(*sys.path, sep='\\n')"]
    paths = subprocess.run(child, check=True, capture_output=True, text=True).stdout.splitlines()
    strays = [path for path in paths if path and Path(path).is_relative_to(tree)]
    assert not strays, f"the tree is importable: {strays}"


@contextmanager
def server(checkpoint: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`omni serve` on a free port; yields its URL once it is ready."""
    command = [OMNI, "serve", "--port", "0", "--model-path", str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [""]
            while not lines[-1].startswith(READY):
                lines.append(process.stdout.readline())
                assert lines[-1], "the server ended before it was ready:\n" + "".join(lines)
            yield lines[-1].removeprefix(READY).strip(), process
        finally:
            process.kill()


def post(url: str, body: dict[str, Any]) -> Any:
    """The JSON answer to a JSON request."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
        return json.load(response)


def check_page(url: str) -> None:
    """The page at / and a file of it came with the wheel."""
    for path in ("/", "/playground/main.js"):
        with urllib.request.urlopen(url + path, timeout=WITHIN_S) as response:
            assert response.read(), path


def heard(reply: dict[str, Any]) -> tuple[str, float]:
    """Transcript and seconds of audio of a chat reply."""
    message = reply["choices"][0]["message"]
    data = base64.b64decode(message["audio"]["data"])
    with wave.open(io.BytesIO(data)) as file:
        return message["audio"]["transcript"], file.getnframes() / file.getframerate()


def stop(process: subprocess.Popen[str], pids: set[int]) -> None:
    """Interrupt the server once; it must end by itself and leave no stage process."""
    process.send_signal(signal.SIGINT)
    assert process.wait(WITHIN_S) == 0, f"the server ended with status {process.returncode}"
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert not left, f"stage processes outlive the server: {left}"


def main(tree: Path, plugin: str = "qwen3") -> None:
    """One request from wheel to sound."""
    check_origin(tree.resolve(), plugin)
    checkpoint = Path("tiny")
    subprocess.run([OMNI, "tiny", plugin, str(checkpoint)], check=True)
    start_s = time.monotonic()
    with server(checkpoint) as (url, process):
        ready_s = time.monotonic() - start_s
        with urllib.request.urlopen(f"{url}/health", timeout=WITHIN_S) as response:
            stages = json.load(response)["stages"]
        check_page(url)
        caps = {name: {"max_tokens": MOST_TOKENS} for name in stages}
        reply = post(f"{url}/v1/chat/completions", BODY | {"stage_params": caps})
        text, audio_s = heard(reply)
        assert text, "no text came"
        assert audio_s > 0, "no audio came"
        stop(process, {stage["pid"] for stage in stages.values()})
    print(f"served: ready in {ready_s:.1f} s, {len(text)} characters, {audio_s:.2f} s of audio")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
