"""Reading a request body under a size limit.

Knows HTTP. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from omni_core.errors import PayloadTooLargeError
from omni_server.stream import ClientGoneError


async def read_body(request: Request, limit_bytes: int) -> bytearray:
    """The whole body; PayloadTooLargeError as soon as it is known to exceed the limit.

    Raises ClientGoneError when the client leaves before it has sent all.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit_bytes:
                raise _too_large(limit_bytes)
    except ClientDisconnect as exc:
        raise ClientGoneError from exc
    return body


def _too_large(limit_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The request body is larger than {limit_bytes} bytes; send media as URLs, "
        "or raise the limit with --max-body-mib."
    )
