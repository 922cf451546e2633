"""The fuzzer of the server names what it finds, exceptions and deaths, and the request before."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from omni_core.testing import echo
from target import Target, echo_environment, serving, until

FUZZ = Path(__file__).parent / "fuzz"
ENDED_S = 20.0


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, whose neighbours have names that other folders have, too."""
    monkeypatch.syspath_prepend(str(FUZZ))
    import server

    yield server
    del sys.modules["server"], sys.modules["journal"]


def send(target: Target, file: Path, words: str) -> None:
    """As schemathesis does with our hooks."""
    journal = sys.modules["journal"]
    body = {"messages": [{"role": "user", "content": words}]}
    journal.note(file, "POST", "/v1/chat/completions", {}, body)
    url = f"{target.url}/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        urllib.request.urlopen(request, timeout=ENDED_S).close()
    except urllib.error.HTTPError:
        pass
    except OSError:
        return
    journal.note_answer(file)


def test_a_server_that_dies_and_what_it_printed_are_findings(
    fuzz: ModuleType, tmp_path: Path
) -> None:
    journal = fuzz.Journal(tmp_path / "journal")
    checkpoint = echo.write_checkpoint(tmp_path / "echo")
    keys = tmp_path / "keys"
    keys.write_text(fuzz.ADMIN_KEY)
    server = {"environment": echo_environment(tmp_path / "plugins"), "on_line": journal.heard}
    with serving(checkpoint, "--admin-key-file", str(keys), **server) as target:
        fuzz.log_all(target)
        for words in ("good", "crash:writer"):
            send(target, journal.file, words)
        until(lambda: [*journal.findings()], ENDED_S, "the exception is in the log")
        [crash] = journal.findings()
        assert "RuntimeError: asked to crash" in crash
        assert '"content": "crash:writer"' in crash
        target.signal(signal.SIGKILL)
        target.wait()
        for words in ("nobody hears this", "nor this"):
            send(target, journal.file, words)
        [ended] = fuzz.told(fuzz.left(target, journal), journal)
        assert "the server ended with -9" in ended
        assert "nobody hears this" in ended
        [gone] = fuzz.told(fuzz.asked(target, journal, 0.1, None), journal)
        assert gone.startswith("URLError: ")


def test_what_a_stage_still_holds_is_a_finding(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz, "QUIET_S", 0.2)
    monkeypatch.setattr(fuzz, "held", lambda _: {("writer", "running"): 1.0})
    journal = fuzz.Journal(tmp_path / "journal")

    class Living:
        exit_code = None

    [held] = fuzz.told(fuzz.left(Living(), journal), journal)
    assert held == (
        "AssertionError: not within 0.2 s: every stage has let go of every request\n"
        "  last sent: no request"
    )
