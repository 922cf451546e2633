"""Which header fields pass a proxy (RFC 9110, section 7.6.1). Pure."""

from __future__ import annotations

from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

_HOP_BY_HOP: Final = (
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
REQUEST_ID: Final = "X-Request-Id"
WORKER: Final = "X-Omni-Worker"
"""Of every response: who gave it."""


def passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Without those fields that are of one connection alone."""
    kept = headers.copy()
    named = ",".join(headers.getall("Connection", ()))
    for name in (*_HOP_BY_HOP, *filter(None, map(str.strip, named.split(",")))):
        kept.popall(name, None)
    return kept


def to_worker(
    headers: CIMultiDictProxy[str], *, client: str, host: str, scheme: str
) -> CIMultiDict[str]:
    """Of a request: says who asks. A worker draws an id for one that brings none: it is the same as
    in the answer's body."""
    kept = passed_on(headers)
    kept.popall("Host", None)
    kept.popall("Expect", None)  # answered here
    before = kept.popall("X-Forwarded-For", [])
    kept["X-Forwarded-For"] = ", ".join([*before, client])
    kept.setdefault("X-Forwarded-Proto", scheme)
    kept.setdefault("X-Forwarded-Host", host)
    return kept
