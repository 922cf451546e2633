"""Who asks: the key under which a client takes its turns, and what it calls its requests.

Knows headers and addresses. Checks no API key: that is `guard`'s.
"""

from __future__ import annotations

import hashlib
import ipaddress
import uuid
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request

from omni_core.errors import RequestError
from omni_server.keys import presented_key

MAX_REQUEST_ID = 128
_DIGEST_CHARACTERS = 16
UNKNOWN = "unknown"
"""All whose address is not known are one client."""
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def caller(connection: HTTPConnection) -> str:
    """A digest of the API key, however it was sent, or without one the address.

    The API key itself is not in it.
    """
    key = presented_key(connection.headers)
    if key:
        return hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return str(address_of(connection) or UNKNOWN)


def address_of(connection: HTTPConnection) -> Address | None:
    """Where the request comes from. None for what is no address: the server takes it from the
    X-Forwarded-For of the proxies it trusts, and such a one may pass on what a client made up."""
    host = connection.client.host if connection.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def client_key(request: Request, user: str | None) -> str:
    """The same for all calls of one caller for one `user`."""
    return f"{caller(request)} {user}" if user else caller(request)


def own_request_id(request: Request) -> str | None:
    """What the client calls this request, if anything; RequestError for what it could not name in
    the path of a URL again, to cancel it."""
    named = request.headers.get("x-request-id")
    if named and not _is_nameable(named):
        raise RequestError(
            f"The x-request-id must have at most {MAX_REQUEST_ID} characters, all of them "
            "printable ASCII; send another one, or none.",
            param="x-request-id",
        )
    return named or None


def request_id_of(headers: Headers) -> str:
    """What the client calls this request, or an id drawn for it if it cannot be named by that."""
    named = headers.get("x-request-id")
    return named if named and _is_nameable(named) else f"req_{uuid.uuid4().hex}"


def _is_nameable(named: str) -> bool:
    return len(named) <= MAX_REQUEST_ID and named.isascii() and named.isprintable()
