"""Options of stages that are whole numbers, and those that several stages have.

Knows a stage's configuration. Knows nothing of what an option is for.
"""

from __future__ import annotations

from typing import Final, TypeVar

from omni_core.errors import ConfigError
from omni_core.specs import StageConfig

CACHE_ENTRIES = "cache_entries"
"""Of encoders: items whose outputs are kept; of preprocessing: items whose measures are. 0 is off.
Preprocessing should not remember more than the encoders keep, or these read files again."""
DEFAULT_ENTRIES = 64

AR_OPTIONS: Final = dict.fromkeys(
    (
        "max_running",
        "max_batch_tokens",
        "prefill_chunk",
        "kv_budget_bytes",
        "prefix_cache",
        "lookahead",
        "coalesce_ms",
    )
)
"""What an operator may set of an autoregressive stage."""
ENCODER_OPTIONS: Final = ("activation_budget_bytes", CACHE_ENTRIES, "cache_bytes")
"""And of an encoder, beside how large a batch may be, which is in units of its own."""
MEDIA_OPTIONS: Final = dict.fromkeys(
    (
        "max_bytes",
        "max_pixels",
        "max_audio_seconds",
        "max_video_seconds",
        "max_frames",
        "max_video_pixels",
        "decode_timeout_s",
        "request_max_bytes",
        "request_max_pixels",
        "request_max_audio_seconds",
        "request_fetch_timeout_s",
        "fetch_timeout_s",
        "max_redirects",
        "allowed_hosts",
        "allow_private_addresses",
        "allowed_media_dir",
        CACHE_ENTRIES,
    )
)
"""And of preprocessing: the fields of `MediaLimits`, and how many items it remembers."""

T = TypeVar("T", int, None)


def whole_number(stage: StageConfig, name: str, default: T, *, least: int = 1) -> int | T:
    """The option `name` of a stage; ConfigError for anything but a whole number from `least` on."""
    given = stage.options.get(name)
    if given is None:
        return default
    if type(given) is not int or given < least:
        raise ConfigError(
            f"stage {stage.name!r}: {name} must be a whole number of at least {least}, "
            f"not {given!r}"
        )
    return given
