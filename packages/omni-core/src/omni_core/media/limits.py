"""What media of a request may cost.

Knows numbers only. Each loader says in its own words which limit an item breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Upper bounds for fetching and decoding one media item, and all of a request, and where they
    may come from."""

    max_bytes: int = 128 * _MIB
    """Of one item as sent: the decoded base64, the response body, the file."""
    max_pixels: int = 64_000_000
    """Of one image or one video frame, read from the header before anything is decoded."""
    max_audio_seconds: float = 2_400.0
    max_video_seconds: float = 3_600.0
    """Of a video and of its sound track."""
    max_frames: int = 768
    """Kept of one video, whatever frame rate is asked for."""
    max_video_pixels: int = 512_000_000
    """Of all kept frames of one video together; each takes three bytes of memory."""
    fetch_timeout_s: float = 20.0
    """Total for one URL: name resolution, redirects, handshakes and body."""
    decode_timeout_s: float = 300.0
    """Of all clips and videos of one request together; a few bytes can ask for hours of work."""
    request_max_bytes: int = 512 * _MIB
    """Of all items of one request as sent; bounds what URLs bring beside the body."""
    request_max_pixels: int = 512_000_000
    """Of all pictures and kept frames of one request, which are in memory together."""
    request_max_audio_seconds: float = 7_200.0
    request_fetch_timeout_s: float = 60.0
    """For all URLs of one request."""
    max_redirects: int = 5
    allowed_hosts: tuple[str, ...] | None = None
    """Hosts a URL may name; ".example.com" admits subdomains. None admits every public host."""
    allow_private_addresses: bool = False
    """Let URLs reach loopback and private networks, never link-local or metadata addresses. For
    development only."""
    allowed_media_dir: str | None = None
    """The one directory file: URLs may read below; None switches them off."""


LET_THROUGH = MediaLimits(
    max_pixels=(1 << 31) - 1,  # FFmpeg takes no more
    max_audio_seconds=float("inf"),
    max_video_seconds=float("inf"),
    max_frames=1 << 40,
    max_video_pixels=1 << 40,
    decode_timeout_s=float("inf"),
)
"""For items that have been let through before, under an operator's limits."""
