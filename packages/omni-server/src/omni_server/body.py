"""Reading a request body under a size limit.

Knows HTTP. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from starlette.requests import Request

from omni_core.errors import PayloadTooLargeError


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body; PayloadTooLargeError as soon as it is known to exceed the limit."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(body)


def _too_large(limit_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The request body is larger than {limit_bytes} bytes; send media as URLs, "
        "or raise the limit with --max-body-mib."
    )
