"""The journal of weight updates: a file that always says what may have been sent to whom.

Every change is on the disk before what it announces is done: written beside the file, synced, moved
into its place, and the directory synced. Only its owner may read it. Knows no HTTP.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from omni_router.errors import ConfigError

Step: TypeAlias = Literal["pending", "sent", "loaded", "kept"]
"""Of a worker: nothing was sent; it was, and nobody knows what came of it; it has the new weights;
it has said that it keeps the old ones."""
Outcome: TypeAlias = Literal["running", "complete", "kept", "partial"]
"""Of an update: not all is known; every worker has the new weights; none has; some have."""
_VERSION: Final = 1
_UNFINISHED: Final = ".unfinished"


class Entry(msgspec.Struct, kw_only=True):
    """One worker's part in an update."""

    step: Step = "pending"
    started_at: float | None = None
    """Of the process that loaded the weights: the next one has those it was started with."""
    told: str = ""
    """What it said, if it kept the old ones."""


class Update(msgspec.Struct, kw_only=True):
    """One update, from its begin on."""

    id: str
    path: str
    revision: str | None = None
    wait_s: float = 60.0
    begun_at: float
    """Unix time."""
    workers: dict[str, Entry]

    @property
    def outcome(self) -> Outcome:
        """How far it came."""
        steps = {entry.step for entry in self.workers.values()}
        if "sent" in steps or steps == {"pending"}:
            return "running"
        if steps <= {"loaded"}:
            return "complete"
        return "partial" if "loaded" in steps else "kept"


class _Book(msgspec.Struct, kw_only=True):
    version: int = _VERSION
    update: Update | None = None


class Journal:
    """The last update of a fleet. Used by one router process."""

    def __init__(self, path: Path) -> None:
        """Reads the file; ConfigError for one that says nothing: what workers have is then not
        known, and nobody may act as if it were."""
        self._path = path
        self.update: Update | None = None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            self._require_directory()
            return
        except OSError as exc:
            raise ConfigError(f"journal: {path} cannot be read: {exc.strerror}") from exc
        try:
            book = msgspec.json.decode(data, type=_Book)
        except (msgspec.ValidationError, msgspec.DecodeError) as exc:
            raise ConfigError(
                f"journal: {path} is no journal of weight updates ({exc}); see which weights each "
                "worker has (GET /version), restart those that differ, and remove the file"
            ) from exc
        if book.version != _VERSION:
            raise ConfigError(f"journal: {path} was written by another version of omni-router")
        self.update = book.update

    def write(self, update: Update) -> None:
        """Keep it; it is on the disk when this returns. OSError if it cannot be."""
        self.update = update
        unfinished = self._path.with_name(self._path.name + _UNFINISHED)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(_Book(update=update)))
            file.flush()
            os.fsync(descriptor)
        self._move(unfinished)

    def _move(self, unfinished: Path) -> None:
        """From here on it is what the journal says."""
        os.replace(unfinished, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _require_directory(self) -> None:
        if not os.access(self._path.parent, os.W_OK):
            raise ConfigError(
                f"journal: {self._path.parent} is no directory that can be written to"
            )
