"""Who asks: the key under which a client takes its turns, and what it calls its requests.

Knows headers and addresses. Checks no API key: whoever put the server on a network does.
"""

from __future__ import annotations

import hashlib

from starlette.requests import Request

from omni_core.errors import RequestError

MAX_REQUEST_ID = 128
_DIGEST_CHARACTERS = 16


def client_key(request: Request, user: str | None) -> str:
    """The same for all calls with one API key (else from one address) for one `user`.

    The API key itself is not in it.
    """
    credentials = request.headers.get("authorization")
    if credentials:
        caller = hashlib.sha256(credentials.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    else:
        caller = request.client.host if request.client else "unknown"
    return f"{caller} {user}" if user else caller


def own_request_id(request: Request) -> str | None:
    """What the client calls this request, if anything; RequestError for what it could not name in
    the path of a URL again, to cancel it."""
    named = request.headers.get("x-request-id")
    if named and not (len(named) <= MAX_REQUEST_ID and named.isascii() and named.isprintable()):
        raise RequestError(
            f"The x-request-id must have at most {MAX_REQUEST_ID} characters, all of them "
            "printable ASCII; send another one, or none.",
            param="x-request-id",
        )
    return named or None
