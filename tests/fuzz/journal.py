"""Which request a server was last sent when it printed that something had gone wrong.

One process sends and writes lines into a file; another one reads what the server prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "OMNI_FUZZ_JOURNAL"
"""The environment variable that names the file."""
LONGEST: Final = 4_000
_ANSWERED: Final = "answered"
_OF_A_STAGE: Final = re.compile(r"[A-Z]+ omni\.stage: \[[^]]*\] ")
_TRACEBACK: Final = "Traceback (most recent call last):"


def note(file: Path, method: str, path: str, query: Any, body: Any) -> None:
    """This request is about to be sent."""
    request = {"method": method, "path": path, "query": query, "body": body}
    _append(file, json.dumps(request, default=repr)[:LONGEST])


def note_answer(file: Path) -> None:
    """The request has been answered, before another one is sent."""
    _append(file, _ANSWERED)


def _append(file: Path, line: str) -> None:
    with file.open("a") as journal:
        journal.write(f"{line}\n")


class Journal:
    """The file of one run, and the exceptions that the server printed meanwhile."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._is_inside = False
        self._exceptions: dict[str, str] = {}

    def heard(self, line: str) -> None:
        """The server has printed a line, or passes on one of a stage process."""
        line = _OF_A_STAGE.sub("", line, count=1)
        if line == _TRACEBACK:
            self._is_inside = True
        elif self._is_inside and line and not line.startswith(" "):
            self._is_inside = False
            self._exceptions.setdefault(line, self.last())

    def last(self) -> str:
        """The newest request that found a server: those to a dead one have no answer either."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        answered = max((n for n, line in enumerate(lines) if line == _ANSWERED), default=-1)
        open_since = lines[answered + 1 :] or lines[answered - 1 :]
        return open_since[0] if open_since else "no request"

    def findings(self) -> Iterator[str]:
        """The exceptions, each once, with what had been sent when it was first there."""
        for exception, request in self._exceptions.items():
            yield f"the server's log has an exception: {exception}\n  last sent: {request}"
