"""Sockets for URLs that strangers choose: only checked addresses, only until a deadline.

Built on httpcore's public `NetworkBackend` interface, so the address that was checked is the
address that is connected to: no second name lookup lies between. Knows nothing of HTTP or media.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import httpcore

from omni_core.errors import MediaError

Resolver: TypeAlias = Callable[[str, int], Sequence[str]]
"""Host name and port to IP addresses in text form; raises OSError when there are none."""

_IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_AZURE_PLATFORM = ipaddress.IPv4Address("168.63.129.16")
"""The host agent of Azure machines: an address of the public range that only guests reach."""

_LOCAL_NETWORKS = tuple(
    ipaddress.ip_network(network)
    for network in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7",
    )
)  # fmt: skip
_EC2_METADATA = ipaddress.IPv6Address("fd00:ec2::254")
"""The one metadata service of a cloud that lies in a private network and not in link-local."""


def system_resolver(host: str, port: int) -> Sequence[str]:
    """Resolve through the operating system; takes as long as that takes."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: str) -> bool:
    """Whether an IP address in text form belongs to the public unicast internet.

    IPv4 inside IPv6 is judged by the IPv4 address (mapped, NAT64). 6to4 and Teredo, which wrap
    one as well and serve nobody any more, are never public.
    """
    parsed = _unwrapped(ipaddress.ip_address(address))
    if parsed == _AZURE_PLATFORM:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and (
        parsed.is_site_local or parsed.sixtofour is not None or parsed.teredo is not None
    ):
        return False
    return parsed.is_global and not (
        parsed.is_multicast
        or parsed.is_reserved
        or parsed.is_private
        or parsed.is_loopback
        or parsed.is_link_local
        or parsed.is_unspecified
    )


def is_local(address: str) -> bool:
    """Whether an IP address in text form is loopback or in a private network.

    Link-local addresses, where clouds keep a machine's credentials, are not among them.
    """
    parsed = _unwrapped(ipaddress.ip_address(address))
    return parsed != _EC2_METADATA and any(parsed in network for network in _LOCAL_NETWORKS)


def _unwrapped(address: _IPAddress) -> _IPAddress:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


class Deadline:
    """A point in time that all steps of one fetch share."""

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left; raises httpcore.ReadTimeout once there are none."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the deadline of the fetch has passed")
        return left_s


class GuardedBackend(httpcore.NetworkBackend):
    """Connects to names whose every address is public, and to those addresses exactly.

    `connect_tcp` raises MediaError for a refused or unknown name, in the same words for both, so
    that nobody can map an internal network by the difference.
    """

    def __init__(
        self,
        deadline: Deadline,
        resolver: Resolver,
        sockets: httpcore.NetworkBackend,
        *,
        allow_private: bool,
    ) -> None:
        self._deadline = deadline
        self._resolver = resolver
        self._sockets = sockets
        self._allow_private = allow_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of `host` that answers; see `NetworkBackend`."""
        error: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in self._checked_addresses(host, port):
            try:
                stream = self._sockets.connect_tcp(
                    address, port, self._deadline.remaining_s(), local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                error = exc
            else:
                return _DeadlineStream(stream, self._deadline)
        raise error or httpcore.ConnectError("the name has no address")

    def _checked_addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as exc:
            raise _unreachable() from exc
        if not addresses or not all(self._admits(address) for address in addresses):
            raise _unreachable()
        return addresses

    def _admits(self, address: str) -> bool:
        return is_public(address) or (self._allow_private and is_local(address))

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        """Run the resolver in a thread of its own, since getaddrinfo knows no timeout."""
        answer: Future[Sequence[str]] = Future()

        def resolve() -> None:
            try:
                answer.set_result(self._resolver(host, port))
            except (OSError, UnicodeError) as exc:
                answer.set_exception(exc)

        threading.Thread(target=resolve, name="media-resolver", daemon=True).start()
        try:
            return answer.result(timeout=self._deadline.remaining_s())
        except TimeoutError as exc:
            raise httpcore.ConnectTimeout("the name service did not answer in time") from exc


def _unreachable() -> MediaError:
    return MediaError(
        "The host of the media URL has no public address that may be fetched from; "
        "send the media as a data: URL instead."
    )


class _DeadlineStream(httpcore.NetworkStream):
    """A stream whose every step ends by the deadline, so that dripping bytes gain no time."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.remaining_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.remaining_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._deadline.remaining_s())
        return _DeadlineStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
