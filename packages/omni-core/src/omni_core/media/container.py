"""Opening bytes with FFmpeg's demuxers, safely.

Knows which containers are media and nothing else. Several of FFmpeg's formats are playlists that
open further files and URLs; neither they nor any protocol is admitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import av
import av.container
import av.error

from omni_core.errors import MediaError

_CONTAINERS = (
    "mov,matroska,webm,avi,asf,flv,mpegts,mpeg,mpegvideo,ogg,gif,apng,"
    "wav,w64,aiff,caf,au,flac,mp3,aac,amr,ac3,eac3"
)


@contextmanager
def open_container(data: bytes, kind: str) -> Iterator[av.container.InputContainer]:
    """Open encoded bytes for demuxing; `kind` ("audio", "video") words the errors.

    Raises MediaError for unknown formats, and in place of any FFmpeg error inside the block.
    """
    options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
    try:
        with av.open(
            BytesIO(data), mode="r", container_options=options, metadata_errors="replace"
        ) as container:
            yield container
    except (av.error.FFmpegError, IndexError) as exc:  # PyAV: a stream that appears midway
        raise MediaError(
            f"The {kind} is damaged or in a format that cannot be decoded; MP4, WebM and MKV, "
            "WAV, FLAC, MP3, OGG and M4A work."
        ) from exc
