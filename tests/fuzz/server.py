"""Requests that schemathesis makes up from the OpenAPI document: `nox -s fuzz -- --minutes 1`.

A live server of a tiny checkpoint answers them: boundaries and wrong types of every field first,
then random bodies until the time is over. A finding is a 5xx, a status or an answer that the
document does not have, or one that does not come; an exception in the server's log or its death,
each with the request that was sent last; and afterwards a server that is not healthy, still holds
something, or has grown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Final

from journal import VARIABLE, Journal

from omni_qwen3.tiny import build
from target import Target, serving, until
from traces import holdings

MIB: Final = 1024 * 1024
ADMIN_KEY: Final = "fuzz-admin"
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
NOT_ASKED: Final = "/admin/pause"
"""After it, every other answer would be a 503."""
ANSWER_S: Final = 60
"""An answer that takes longer hangs."""
MOST_GROWTH_MIB: Final = 256
"""Of a process, from after the first requests to the end: caches of allocators and of prefixes."""
LEAST_SERVED: Final = 10
QUIET_S: Final = 30.0
TINY_REPLIES: Final = {"max_new_tokens": 8, "talker_max_new_tokens": 8}


def main() -> int:
    """Ask until the time is over, and return 1 if there is any finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to ask")
    parser.add_argument("--seed", type=int, help="to ask the same again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-fuzz-") as directory:
        checkpoint = Path(directory, "tiny")
        build(str(checkpoint), seed=0)
        shorten_replies(checkpoint / "generation_config.json")
        keys = Path(directory, "keys")
        keys.write_text(ADMIN_KEY)
        keys.chmod(0o600)
        arguments = ("--dtype", "float32", "--admin-key-file", str(keys))
        journal = Journal(Path(directory, "journal"))
        with serving(str(checkpoint), *arguments, on_line=journal.heard) as target:
            log_all(target)
            asking = asked(target, journal, options.minutes, options.seed)
            found = [*told(asking, journal), *told(left(target, journal), journal)]
            return report([*found, *journal.findings()])


def log_all(target: Target) -> None:
    """Have what stage processes print in the server's log, too: a crash says why only there."""
    request = urllib.request.Request(
        f"{target.url}/admin/log-level",
        data=json.dumps({"level": "INFO"}).encode(),
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=ANSWER_S).close()


def told(findings: Iterator[str], journal: Journal) -> Iterator[str]:
    """The findings; that they cannot be looked for is one itself."""
    try:
        yield from findings
    except (OSError, HTTPException, AssertionError) as exc:
        yield f"{type(exc).__name__}: {exc}\n  last sent: {journal.last()}"


def shorten_replies(config: Path) -> None:
    """What is left out of a request must not make a reply of minutes."""
    config.write_text(json.dumps({**json.loads(config.read_text()), **TINY_REPLIES}))


def asked(target: Target, journal: Journal, minutes: float, seed: int | None) -> Iterator[str]:
    """Ask; findings of schemathesis, and growth."""
    if not answers(target):
        yield "a good request fails before anything was asked"
    before = holdings(target.pid).resident_bytes
    command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
    command += [f"{target.url}/openapi.json", "--max-time", str(round(minutes * 60))]
    command += ["--checks", ",".join(CHECKS), "--request-timeout", str(ANSWER_S)]
    command += ["--header", f"Authorization: Bearer {ADMIN_KEY}", "--exclude-path", NOT_ASKED]
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-shrink"]
    command += ["--suppress-health-check", "all", "--generation-database", "none"]
    command += [] if seed is None else ["--seed", str(seed)]
    hooks = {"SCHEMATHESIS_HOOKS": "hooks", VARIABLE: str(journal.file)}
    if subprocess.run(command, env={**os.environ, **hooks}, check=False).returncode:
        yield "schemathesis has findings, see above"
    served = statuses(target)
    sys.stdout.write(f"requests of the pipeline by status: {served}\n")
    if served.get("200", 0) < LEAST_SERVED:
        yield f"fewer than {LEAST_SERVED} requests were served: what is made up is too wild"
    for name, resident in holdings(target.pid).resident_bytes.items():
        growth_mib = (resident - before.get(name, 0)) / MIB
        sys.stdout.write(f"{name}: {resident / MIB:.0f} MiB, {growth_mib:+.0f}\n")
        if growth_mib > MOST_GROWTH_MIB:
            yield f"{name} grew by {growth_mib:.0f} MiB, more than {MOST_GROWTH_MIB}"


def statuses(target: Target) -> dict[str, int]:
    """How many requests of the pipeline ended with each status."""
    found = re.findall(r'^omni_requests_total\{status="(\d+)"\} (\S+)', target.metrics(), re.M)
    return {status: int(float(count)) for status, count in found}


def left(target: Target, journal: Journal) -> Iterator[str]:
    """What is wrong with the server afterwards."""
    if target.exit_code is not None:
        ended = f"the server ended with {target.exit_code}: {target.lines[-20:]}"
        yield f"{ended}\n  last sent: {journal.last()}"
        return
    until(lambda: not held(target), QUIET_S, "every stage has let go of every request")
    health = target.health()
    if health["status"] != "ready":
        yield f"the server is {health['status']}: {health}"
    restarts = {name: stage["restarts"] for name, stage in health["stages"].items()}
    if any(restarts.values()):
        yield f"stages were started again: {restarts}"
    if not answers(target):
        yield "a good request fails afterwards"


def held(target: Target) -> dict[tuple[str, str], float]:
    """What stages hold of requests."""
    names = ("running", "waiting", "held", "inbox")
    return {key: value for key, value in target.gauges().items() if key[1] in names and value}


def answers(target: Target) -> bool:
    """Whether a good request is served."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "modalities": ["text", "audio"]}
    request = urllib.request.Request(
        f"{target.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
        return bool(json.load(reply)["choices"][0]["message"]["audio"])


def report(findings: list[str]) -> bool:
    """Print the outcome; True if there is anything to mend."""
    sys.stdout.write("\n".join([f"findings: {len(findings)}", *findings]) + "\n")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
