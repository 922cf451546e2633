"""The processes of a soak: workers that live several lives, and the router before them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ADMIN_KEY: Final = "soak-admin"
SCRIPT: Final = str(Path(__file__).with_name("chaos_worker.py"))


@dataclass(slots=True)
class Worker:
    """A process of a worker, and its next lives."""

    name: str
    port: int
    ledger: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Live, again."""
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, str(self.port), str(self.ledger)], stderr=subprocess.DEVNULL
        )

    def signal(self, number: int) -> None:
        """Do to it what a signal does."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self) -> None:
        """Kill it, whatever state it is in."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def start_router(place: Path, port: int, workers: list[Worker]) -> subprocess.Popen[bytes]:
    """The router before all workers, that looks often and gives up early."""
    key = place / "admin.key"
    key.touch(mode=0o600)
    key.write_text(ADMIN_KEY)
    config = {
        "port": port,
        "workers": [{"url": f"http://127.0.0.1:{w.port}", "name": w.name} for w in workers],
        "admin_key_file": str(key),
        "probe_interval_s": 0.3,
        "probe_timeout_s": 1.0,
        "slow_start_s": 1.0,
    }
    (place / "router.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "omni_router", "--config", str(place / "router.json")]
    with (place / "router.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def fds(pid: int) -> int:
    """Its open files and sockets."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def tell(line: str) -> None:
    """Say it to whoever watches."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
