"""Bytes out of base64 text and data: URLs (RFC 2397), sized before they are decoded.

Knows nothing of networks or files, and does not believe the media type a URL claims.
"""

from __future__ import annotations

import binascii
from io import BytesIO
from urllib.parse import unquote, unquote_to_bytes

from omni_core.errors import MediaError, PayloadTooLargeError
from omni_core.media.limits import MediaLimits

_BASE64_HINT = (
    "The media is not valid base64; use the standard alphabet (A-Z a-z 0-9 + /) with padding "
    "and without line breaks."
)

_PIECE = 2**18
"""Characters that are decoded at a time, in a millisecond: one call for all would keep the
interpreter from every other thread until it is done. A multiple of four."""


def decode_base64(text: str, limits: MediaLimits) -> bytes:
    """Decode bare base64; a `data:...,` prefix that does not belong there is skipped.

    Raises MediaError for anything but strict, padded base64 and for an empty item, and
    PayloadTooLargeError, before decoding, above `limits.max_bytes`.
    """
    if text[:5].lower() == "data:":
        text = text.partition(",")[2]
    return _strict_base64(text, limits)


def decode_data_url(url: str, limits: MediaLimits) -> bytes:
    """Decode `data:[<type>][;<parameter>]*[;base64],<data>`, base64 or percent-encoded.

    Raises as `decode_base64` does.
    """
    header, comma, payload = url[len("data:") :].partition(",")
    if not comma:
        raise MediaError("The data: URL has no comma; write it as data:<media type>;base64,<data>.")
    if header.rpartition(";")[2].strip().lower() == "base64":
        return _strict_base64(unquote(payload) if "%" in payload else payload, limits)
    check_size(len(payload) - 2 * payload.count("%"), limits)
    return not_empty(unquote_to_bytes(payload))


def check_size(n_bytes: int, limits: MediaLimits) -> None:
    """Raise PayloadTooLargeError when an item of `n_bytes` is over `limits.max_bytes`."""
    if n_bytes > limits.max_bytes:
        raise PayloadTooLargeError(
            f"The media item is larger than the limit of {limits.max_bytes} bytes; "
            "send a smaller or more strongly compressed one."
        )


def not_empty(data: bytes) -> bytes:
    """Return `data`, or raise MediaError when there is none."""
    if not data:
        raise MediaError("The media item is empty (0 bytes).")
    return data


def _strict_base64(text: str, limits: MediaLimits) -> bytes:
    check_size(len(text) // 4 * 3 - text[-2:].count("="), limits)
    return not_empty(strict_base64(text))


def strict_base64(text: str) -> bytes:
    """The bytes of base64 text; MediaError for what is none, no padding or a line break too."""
    if len(text) % 4:
        raise MediaError(_BASE64_HINT)
    data = BytesIO()
    try:
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            if piece.endswith("=") and start + _PIECE < len(text):
                raise MediaError(_BASE64_HINT)  # padding is for the end
            data.write(binascii.a2b_base64(piece, strict_mode=True))
    except ValueError as exc:  # binascii.Error, and text that is not ASCII
        raise MediaError(_BASE64_HINT) from exc
    return data.getvalue()
