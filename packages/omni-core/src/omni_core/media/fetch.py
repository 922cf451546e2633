"""Bytes of a media item, wherever a request says they are: data:, http(s): or file: URL.

Knows which schemes exist and the rule for local files. Does not look into the bytes. Refusals
never tell whether a local file exists or what an internal host answers.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omni_core.errors import MediaError
from omni_core.media import web
from omni_core.media.dataurl import check_size, decode_data_url, not_empty
from omni_core.media.limits import MediaLimits
from omni_core.media.network import Resolver, system_resolver
from omni_core.types import MediaPart

_FILE_REFUSED = "The file: URL does not name a readable file below the allowed media directory."


def media_bytes(
    part: MediaPart, limits: MediaLimits, *, resolver: Resolver = system_resolver
) -> bytes:
    """The encoded bytes of one media part, from its `data` or fetched from its `url`.

    Raises as `fetch` does, and MediaError for a part with neither.
    """
    if part.data is not None:
        check_size(len(part.data), limits)
        return not_empty(part.data)
    if part.url is None:
        raise MediaError(f"The {part.kind} part has neither data nor a URL.")
    return fetch(part.url, limits, resolver=resolver)


def fetch(url: str, limits: MediaLimits, *, resolver: Resolver = system_resolver) -> bytes:
    """Return the bytes behind a data:, http:, https: or file: URL. Blocks; call it in a thread.

    Raises MediaError for what is refused or fails, and PayloadTooLargeError above
    `limits.max_bytes`, before the whole item is in memory. `resolver` is for tests and for hosts
    with a name service of their own.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return decode_data_url(url, limits)
    if scheme in ("http", "https"):
        return web.get(url, limits, resolver)
    if scheme == "file":
        return _read_file(url, limits)
    raise MediaError(
        "The media URL has an unsupported scheme; use data:, http: or https:, for example "
        "data:image/png;base64,<data>."
    )


def _read_file(url: str, limits: MediaLimits) -> bytes:
    if limits.allowed_media_dir is None:
        raise MediaError(
            "file: URLs are switched off on this server; send the media as a data: URL."
        )
    path = _allowed_path(url, limits.allowed_media_dir)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise MediaError(_FILE_REFUSED)
            check_size(status.st_size, limits)
            data = file.read(limits.max_bytes + 1)
    except OSError as exc:
        raise MediaError(_FILE_REFUSED) from exc
    check_size(len(data), limits)  # the file may have grown
    return not_empty(data)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a real file: a FIFO would wait for its writer, a link was swapped in since."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _allowed_path(url: str, allowed_dir: str) -> Path:
    """The real path behind a file: URL, symbolic links followed, if it lies below the root."""
    try:
        parts = urlsplit(url)
        path = Path(os.path.realpath(unquote(parts.path)))
        root = Path(os.path.realpath(allowed_dir))
    except (ValueError, OSError) as exc:  # a NUL byte, a malformed host
        raise MediaError(_FILE_REFUSED) from exc
    if parts.netloc not in ("", "localhost") or not path.is_relative_to(root):
        raise MediaError(_FILE_REFUSED)
    return path
