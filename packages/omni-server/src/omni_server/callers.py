"""Who asks: the key under which a client takes its turns and may cancel its own requests.

Knows headers and addresses. Checks no API key: whoever put the server on a network does.
"""

from __future__ import annotations

import hashlib

from starlette.requests import Request

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
