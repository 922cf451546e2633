"""Media as clients write it: bare base64, data: URLs, http(s) URLs.

Decodes what is inline, checks what is not, fetches nothing, and says which field is at fault.
Knows no codec: whether bytes are an image is found out where they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from omni_core.errors import MediaError, RequestError
from omni_core.media.dataurl import decode_base64, decode_data_url
from omni_core.media.limits import MediaLimits
from omni_core.types import MediaKind, MediaPart

INPUT_AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "mp4", "webm")

Decoder = Callable[[str, MediaLimits], bytes]


def part_from_url(kind: MediaKind, url: str, param: str, limits: MediaLimits) -> MediaPart:
    """A media part from a URL; MediaError when it can be neither decoded nor fetched."""
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        return MediaPart(kind=kind, data=_decode(decode_data_url, url, param, limits))
    if scheme not in ("http", "https"):
        raise MediaError(
            f"'{param}': only http:, https: and data: URLs are accepted, not {url[:32]!r}.",
            param=param,
        )
    try:
        host = urlsplit(url).hostname
    except ValueError as exc:
        raise MediaError(f"'{param}' is not a valid URL: {exc}.", param=param) from exc
    if not host:
        raise MediaError(f"'{param}' is a URL without a host.", param=param)
    return MediaPart(kind=kind, url=url)


def part_from_input_audio(
    data: str, audio_format: str | None, param: str, limits: MediaLimits
) -> MediaPart:
    """An audio part from `input_audio`; a data: prefix before the base64 is skipped."""
    if audio_format is not None and audio_format.lower() not in INPUT_AUDIO_FORMATS:
        raise MediaError(
            f"'{param}.format': {audio_format!r} is not one of {', '.join(INPUT_AUDIO_FORMATS)}.",
            param=f"{param}.format",
        )
    return MediaPart(kind="audio", data=_decode(decode_base64, data, param, limits))


def _decode(decode: Decoder, text: str, param: str, limits: MediaLimits) -> bytes:
    try:
        return decode(text, limits)
    except RequestError as exc:
        raise type(exc)(f"'{param}': {exc.message}", param=param, code=exc.code) from exc
