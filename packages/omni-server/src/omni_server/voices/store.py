"""Uploaded voices: what is kept of each, and where, which is the memory of this process here.

Knows names and bytes. Whether a recording is a voice was found out before it comes here.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from omni_core.errors import ConflictError
from omni_server.voices.names import key_of

MAX_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Of all recordings in memory together."""


class VoiceCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an uploaded voice beside its sound."""

    name: str
    created_at: int
    """Unix time in seconds."""
    text: str = ""
    """What is said in its recording; "" if nobody knows."""
    consent: str | None = None
    """What its uploader said of the speaker's consent; nobody has checked it."""


@dataclass(frozen=True, slots=True)
class UploadedVoice:
    """A voice with its recording, as it was sent."""

    card: VoiceCard
    recording: bytes


class VoiceStore(Protocol):
    """Where uploaded voices are kept, by name. Safe to share by threads; may wait for a disk."""

    def cards(self) -> list[VoiceCard]:
        """All of them, by name."""

    def card(self, name: str) -> VoiceCard | None:
        """One of them, however its name is written; None if there is no such."""

    def voice(self, name: str) -> UploadedVoice | None:
        """The same with its recording."""

    def require_room(self, name: str, n_bytes: int) -> None:
        """ConflictError unless a voice of this name and size can be added now."""

    def add(self, voice: UploadedVoice) -> None:
        """Keep one more; ConflictError as in `require_room`."""

    def remove(self, name: str) -> bool:
        """Forget one; whether it was there."""


class MemoryStore:
    """A `VoiceStore` that ends with its process."""

    def __init__(self, max_voices: int, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max_voices, self._max_bytes = max_voices, max_bytes
        self._voices: dict[str, UploadedVoice] = {}
        self._lock = threading.RLock()

    def cards(self) -> list[VoiceCard]:
        """See `VoiceStore`."""
        with self._lock:
            return [voice.card for _, voice in sorted(self._voices.items())]

    def card(self, name: str) -> VoiceCard | None:
        """See `VoiceStore`."""
        voice = self.voice(name)
        return None if voice is None else voice.card

    def voice(self, name: str) -> UploadedVoice | None:
        """See `VoiceStore`."""
        return self._voices.get(key_of(name))

    def require_room(self, name: str, n_bytes: int) -> None:
        """See `VoiceStore`."""
        with self._lock:
            require_new(name, self.card(name), len(self._voices), self._max_voices)
            n_bytes += sum(len(voice.recording) for voice in self._voices.values())
        if n_bytes > self._max_bytes:
            raise ConflictError(
                f"The server keeps {self._max_bytes} bytes of voices at most; delete one, send a "
                "smaller file, or have its operator set --voices-dir.",
                code="too_many_voices",
            )

    def add(self, voice: UploadedVoice) -> None:
        """See `VoiceStore`."""
        with self._lock:
            self.require_room(voice.card.name, len(voice.recording))
            self._voices[key_of(voice.card.name)] = voice

    def remove(self, name: str) -> bool:
        """See `VoiceStore`."""
        return self._voices.pop(key_of(name), None) is not None


def require_new(name: str, there: VoiceCard | None, n_voices: int, max_voices: int) -> None:
    """ConflictError for a name that is taken, or for one voice too many."""
    if there is not None:
        raise taken(there.name)
    if n_voices >= max_voices:
        raise ConflictError(
            f"The server keeps {max_voices} voices at most; delete one, or have its operator raise "
            "--max-voices.",
            code="too_many_voices",
        )


def taken(name: str) -> ConflictError:
    """That there is a voice of this name."""
    return ConflictError(
        f"There is a voice {name!r}; choose another name, or delete that one first.",
        param="name",
        code="voice_exists",
    )
