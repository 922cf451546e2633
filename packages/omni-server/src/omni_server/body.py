"""Reading a request body under a size limit.

Knows HTTP. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import ClientDisconnect, Request

from omni_core.errors import PayloadTooLargeError
from omni_server.stream import ClientGoneError

SMALLER_MEDIA = (
    "send smaller media, or URLs of it in a chat, or raise the limit with --max-body-mib"
)


async def read_body(
    request: Request, limit_bytes: int, *, instead: str = SMALLER_MEDIA
) -> bytearray:
    """The whole body; raises as `body_chunks` does."""
    body = bytearray()
    async for chunk in body_chunks(request, limit_bytes, instead=instead):
        body += chunk
    return body


async def body_chunks(
    request: Request, limit_bytes: int, *, instead: str = SMALLER_MEDIA
) -> AsyncGenerator[bytes, None]:
    """The body as it comes; PayloadTooLargeError as soon as it is known to exceed the limit, which
    says what to do instead.

    Raises ClientGoneError when the client leaves before it has sent all.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes, instead)
    n_bytes = 0
    try:
        async for chunk in request.stream():
            n_bytes += len(chunk)
            if n_bytes > limit_bytes:
                raise _too_large(limit_bytes, instead)
            yield chunk
    except ClientDisconnect as exc:
        raise ClientGoneError from exc


def _too_large(limit_bytes: int, instead: str) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The request body is larger than {limit_bytes} bytes; {instead}.")
