"""GET of one http(s) URL that a stranger chose: redirects, status, size, encoding.

Each hop is parsed, checked and connected anew through `GuardedBackend`. The URL is split once and
its parts are handed to httpcore, so no second parser can read another host out of it.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

import httpcore

from omni_core.errors import MediaError
from omni_core.media.dataurl import check_size, not_empty
from omni_core.media.limits import MediaLimits
from omni_core.media.network import Deadline, GuardedBackend, Resolver

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_LOOKS_NUMERIC = re.compile(r"(?:^|\.)(?:[0-9]+|0[xX][0-9a-fA-F]*)\.?$")
"""Hosts that inet_aton reads as an address: decimal, octal, hexadecimal, shortened."""
_SOCKETS = httpcore.SyncBackend()
_TARGET_SAFE = "/:?#[]@!$&'()*+,;=%~"


@dataclass(frozen=True, slots=True)
class _Hop:
    """One URL, taken apart."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


def get(
    url: str,
    limits: MediaLimits,
    resolver: Resolver,
    sockets: httpcore.NetworkBackend = _SOCKETS,
) -> bytes:
    """Return the body of `url`, following at most `limits.max_redirects` redirects.

    Raises PayloadTooLargeError above `limits.max_bytes` and MediaError for everything else: a
    refused address, a status other than 200, a compressed or cut body, a passed deadline.
    """
    deadline = Deadline(limits.fetch_timeout_s)
    backend = GuardedBackend(
        deadline, resolver, sockets, allow_private=limits.allow_private_addresses
    )
    try:
        for _ in range(limits.max_redirects + 1):
            answer = _request(_parse(url, limits), backend, limits)
            if isinstance(answer, bytes):
                return not_empty(answer)
            url = urljoin(url, answer.location)
    except httpcore.TimeoutException as exc:
        raise MediaError(
            f"The media URL did not deliver within {limits.fetch_timeout_s:g} s; "
            "send the media as a data: URL or use a faster host."
        ) from exc
    except (httpcore.NetworkError, httpcore.ProtocolError) as exc:
        raise MediaError(
            "The media URL could not be fetched: the connection failed or the answer was "
            "not valid HTTP."
        ) from exc
    raise MediaError(
        f"The media URL redirects more than {limits.max_redirects} times; give the final URL."
    )


def _parse(url: str, limits: MediaLimits) -> _Hop:
    if _UNSAFE.search(url):
        raise MediaError("The media URL holds spaces, control characters or backslashes.")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = _ascii_host(parts.hostname or "")
    except ValueError as exc:  # UnicodeError included
        raise MediaError("The media URL is malformed.") from exc
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise MediaError("The media URL must be http:// or https:// and name a host.")
    if parts.username is not None or parts.password is not None:
        raise MediaError("The media URL must not hold a user name or password.")
    _check_host(host, limits)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Hop(
        parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], quote(target, _TARGET_SAFE)
    )


def _ascii_host(host: str) -> str:
    return host if ":" in host else host.encode("idna").decode("ascii").lower()


def _check_host(host: str, limits: MediaLimits) -> None:
    if _LOOKS_NUMERIC.search(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as exc:
            raise MediaError(
                "The media URL writes an IP address in an unusual form; use four decimal numbers."
            ) from exc
    if limits.allowed_hosts is not None and not any(
        host.rstrip(".") == allowed.lower()
        or (allowed.startswith(".") and host.rstrip(".").endswith(allowed.lower()))
        for allowed in limits.allowed_hosts
    ):
        raise MediaError("This server does not fetch media from the host of the media URL.")


def _request(hop: _Hop, backend: GuardedBackend, limits: MediaLimits) -> bytes | _Redirect:
    headers = {
        "Host": hop.authority,
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": "omni-media",
    }
    context = _tls_context() if hop.scheme == "https" else None
    url = httpcore.URL(scheme=hop.scheme, host=hop.host, port=hop.port, target=hop.target)
    with (
        httpcore.ConnectionPool(ssl_context=context, network_backend=backend) as pool,
        pool.stream("GET", url, headers=list(headers.items())) as response,
    ):
        fields = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in _REDIRECTS and b"location" in fields:
            return _Redirect(fields[b"location"])
        if response.status != 200:
            raise MediaError(f"The media URL answered with HTTP status {response.status}.")
        if fields.get(b"content-encoding", "identity").strip().lower() != "identity":
            raise MediaError("The media URL answered with a compressed body; serve it plain.")
        return _read_body(response, fields.get(b"content-length"), limits)


def _read_body(response: httpcore.Response, length: str | None, limits: MediaLimits) -> bytes:
    if length is not None and length.isdecimal():
        check_size(int(length), limits)
    body = bytearray()
    for chunk in response.iter_stream():
        body += chunk
        check_size(len(body), limits)
    return bytes(body)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return httpcore.default_ssl_context()
