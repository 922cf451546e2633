"""Uploaded voices as files of one directory, which several servers may share.

A file is a line of JSON (`VoiceCard`) and then the recording's bytes. It is called by a digest of
the voice's name, so that no name is a path; it comes into being whole, and only its owner may read
it. Nothing is remembered of the directory: what another server does there counts at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from omni_core.errors import ConfigError, OmniError
from omni_server.voices.names import key_of
from omni_server.voices.store import UploadedVoice, VoiceCard, require_new

_ENDING: Final = ".voice"
_UNFINISHED: Final = ".unfinished-"
_LOCK: Final = ".lock"
_MOST_CARD_BYTES: Final = 1024 * 1024
_CARD: Final = msgspec.json.Decoder(VoiceCard)
log = logging.getLogger("omni.server")


class DirectoryStore:
    """A `VoiceStore` that outlives its process."""

    def __init__(self, directory: Path, max_voices: int) -> None:
        """Makes the directory if it is not there; ConfigError if it cannot be written to."""
        self._directory, self._max_voices = directory, max_voices
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._alone():
                pass
        except OSError as exc:
            raise ConfigError(
                f"voices_dir: {directory} cannot be written to: {exc.strerror}; name a directory "
                "of the user who serves"
            ) from exc

    def cards(self) -> list[VoiceCard]:
        """See `VoiceStore`."""
        found = [self._read(path) for path in self._files()]
        return sorted(
            (voice.card for voice in found if voice is not None), key=lambda c: key_of(c.name)
        )

    def card(self, name: str) -> VoiceCard | None:
        """See `VoiceStore`."""
        voice = self._read(self._path(name))
        return None if voice is None else voice.card

    def voice(self, name: str) -> UploadedVoice | None:
        """See `VoiceStore`."""
        return self._read(self._path(name), whole=True)

    def require_room(self, name: str, n_bytes: int) -> None:
        """See `VoiceStore`."""
        require_new(name, self.card(name), len(self._files()), self._max_voices)

    def add(self, voice: UploadedVoice) -> None:
        """See `VoiceStore`."""
        with _answering("kept"), self._alone():
            self.require_room(voice.card.name, len(voice.recording))
            for left_behind in self._directory.glob(f"{_UNFINISHED}*"):
                left_behind.unlink()
            descriptor, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=self._directory)
            try:
                with open(descriptor, "wb") as file:
                    file.write(msgspec.json.encode(voice.card) + b"\n")
                    file.write(voice.recording)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(unfinished, self._path(voice.card.name))
            finally:
                Path(unfinished).unlink(missing_ok=True)

    def remove(self, name: str) -> bool:
        """See `VoiceStore`."""
        path = self._path(name)
        with _answering("deleted"):
            was_there = path.exists()
            path.unlink(missing_ok=True)
        return was_there

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or server adds a voice meanwhile."""
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _files(self) -> list[Path]:
        return list(self._directory.glob(f"[!.]*{_ENDING}"))

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(key_of(name).encode()).hexdigest()
        return self._directory / f"{digest}{_ENDING}"

    def _read(self, path: Path, *, whole: bool = False) -> UploadedVoice | None:
        """The voice of a file, without its recording unless `whole`."""
        with _answering("read"):
            try:
                with path.open("rb") as file:
                    line = file.readline(_MOST_CARD_BYTES)
                    recording = file.read() if whole else b""
            except FileNotFoundError:
                return None
        try:
            card = _CARD.decode(line)
        except msgspec.MsgspecError as exc:
            log.warning("%s is skipped, for it is no voice: %s", path, exc)
            return None
        if path != self._path(card.name):
            log.warning("%s is skipped, for voice %r is kept by another name", path, card.name)
            return None
        return UploadedVoice(card, recording)


@contextmanager
def _answering(what: str) -> Iterator[None]:
    """What the system refuses, told to the client; the details are the operator's."""
    try:
        yield
    except OSError as exc:
        log.error("a voice cannot be %s: %s", what, exc)
        raise OmniError(
            f"The voice cannot be {what}: {exc.strerror}; ask the server's operator.",
            code="voices_unavailable",
        ) from exc
