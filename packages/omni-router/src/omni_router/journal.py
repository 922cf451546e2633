"""The journal of weight updates: a file that always says what may have been sent to whom.

Every change is on the disk before what it announces is done: written beside the file, synced, moved
into its place, and the directory synced. Only its owner may read it, and one router writes it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from omni_router.errors import ConfigError

Step: TypeAlias = Literal["pending", "sent", "loaded", "kept", "accepted"]
"""Of a worker: nothing was sent; it was, and nobody knows what came of it; it has the new weights;
it has said that it keeps the old ones; an operator says that it may serve with what it has."""
Outcome: TypeAlias = Literal["running", "complete", "kept", "partial"]
"""Of an update: not all is known; every worker has the new weights or was accepted; none has; some
have."""
_VERSION: Final = 1
_UNFINISHED: Final = ".unfinished"
_LOCK: Final = ".lock"
_HAS: Final = frozenset({"loaded", "accepted"})


class Entry(msgspec.Struct, kw_only=True):
    """One worker's part in an update."""

    step: Step = "pending"
    started_at: float | None = None
    """Of the process that has the weights: the next one has those it was started with."""
    told: str = ""
    """What it said last, or what was in its way."""


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
        if steps <= _HAS:
            return "complete"
        return "partial" if steps & _HAS else "kept"

    @property
    def is_served(self) -> bool:
        """Whether some worker serves its weights: no other ones may be served beside them."""
        return any(entry.step in _HAS for entry in self.workers.values())


class Book(msgspec.Struct, kw_only=True, frozen=True):
    """What the file says."""

    version: int = _VERSION
    served: Update | None = None
    """The last one that was complete."""
    open: Update | None = None
    """One that has begun since, and is not resolved."""


class Journal:
    """Of one fleet; used by one router process."""

    def __init__(self, path: Path) -> None:
        """Reads the file. ConfigError for one that says nothing, since nobody may then act as if it
        were known what workers have, and for one that another router writes."""
        self._path = path
        self._lock = self._locked()
        self.book = Book()
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as exc:
            raise ConfigError(f"journal: {path} cannot be read: {exc.strerror}") from exc
        try:
            self.book = msgspec.json.decode(data, type=Book)
        except (msgspec.ValidationError, msgspec.DecodeError) as exc:
            raise ConfigError(
                f"journal: {path} is no journal of weight updates ({exc}); see which weights each "
                "worker has (GET /version), restart those that differ, and remove the file"
            ) from exc
        if self.book.version != _VERSION:
            raise ConfigError(f"journal: {path} was written by another version of omni-router")

    def write(self, book: Book) -> None:
        """Keep it; it is on the disk when this returns. OSError if it cannot be."""
        unfinished = self._path.with_name(self._path.name + _UNFINISHED)
        unfinished.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(unfinished, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(book))
            file.flush()
            os.fsync(file.fileno())
        self._move(unfinished)
        self.book = book

    def close(self) -> None:
        """Let another router have it."""
        os.close(self._lock)

    def _move(self, unfinished: Path) -> None:
        """From here on it is what the journal says."""
        os.replace(unfinished, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _locked(self) -> int:
        lock = self._path.with_name(self._path.name + _LOCK)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigError(f"journal: {lock} cannot be written: {exc.strerror}") from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(descriptor)
            raise ConfigError(f"journal: another router writes {self._path}; stop it") from exc
        return descriptor
