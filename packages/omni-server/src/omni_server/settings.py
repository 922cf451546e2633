"""What an operator can set of the HTTP server.

Knows no pipeline and no environment: the command line builds it, tests build it by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from omni_core.errors import ConfigError
from omni_core.media.limits import MediaLimits
from omni_server.keys import KeyRing

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one server."""

    served_model_name: str
    """The id under which the one loaded model is listed and asked for."""
    max_body_bytes: int = 256 * MIB
    """Larger request bodies are refused with 413 while they are being read."""
    request_timeout_s: float | None = None
    """The longest a request may take; None is no limit. A request may ask for less."""
    audio_ttl_s: float = 3600.0
    """How long a reply's audio id may be named in a later assistant message."""
    max_audio_ids: int = 4096
    """Oldest audio ids are forgotten beyond this many."""
    media: MediaLimits = field(default_factory=MediaLimits)
    """Limits on media inside the body; media behind URLs is the pipeline's to fetch, by the same
    limits (`media_limits`)."""
    api_keys: KeyRing = field(default_factory=KeyRing)
    """Keys of users; without any, everybody is one."""
    admin_keys: KeyRing = field(default_factory=KeyRing)
    """Keys of operators; without any, there are no routes under /admin/."""
    metrics_are_open: bool = True
    """Whether /metrics needs no key where `api_keys` are set."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may call the API from a browser; "*" is every origin."""
    max_realtime_sessions: int = 128
    """Realtime sessions at once; each may hold some 100 MB of a conversation."""
    weights_dirs: tuple[Path, ...] = ()
    """Where operators may load new weights from, besides the directory of the served model."""
    profile_dir: Path | None = None
    """Where recordings of torch's profiler are written; None for no recordings."""
    voices_dir: Path | None = None
    """Where uploaded voices are kept; None is this process's memory."""
    max_voices: int = 100
    """Uploaded voices that are kept at most."""
    rate_limit: int | None = None
    """Requests a minute for each client; None is no limit."""
    playground: bool = True
    """Whether there is a page to talk with the model, at /."""


def media_limits(entry_options: Mapping[str, Any]) -> MediaLimits:
    """Those that the options of a pipeline's entry stage set, and the defaults of the others."""
    known = (field.name for field in fields(MediaLimits))
    given = {name: value for name in known if (value := entry_options.get(name)) is not None}
    try:
        return msgspec.convert(given, MediaLimits)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"limits on media: {exc}") from exc
