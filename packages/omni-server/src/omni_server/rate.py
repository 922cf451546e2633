"""How many requests a client may send: a bucket of tokens for each, filled at a steady rate.

A client is an API key where keys are checked, else an address: a name that nobody checks would be a
new client each time. Knows time and counts; the middleware knows headers.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_core.errors import RateLimitError
from omni_server.callers import UNKNOWN, address_of, caller
from omni_server.door import is_work
from omni_server.errors import deny
from omni_server.metrics import Metrics

MOST_CLIENTS: Final = 10_000
"""Those that have asked for nothing for longest are forgotten beyond this many."""
_MINUTE_S: Final = 60.0
_IPV6_SITE: Final = 64
"""Bits of an IPv6 address that tell clients apart; the others, each of them can choose freely."""
_ANSWERS: Final = frozenset(
    {"http.response.start", "websocket.http.response.start", "websocket.accept"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a client may do after this request."""

    limit: int
    """Requests a minute, and at once."""
    remaining: int
    reset_s: float
    """Until all of `limit` may be sent at once again."""
    wait_s: float
    """Until one more may be sent; 0 if this one was let in."""

    @property
    def headers(self) -> dict[str, str]:
        """As OpenAI tells its clients."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{ceil(self.reset_s * 1000)}ms",
        }


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float


class RateLimiter:
    """The buckets of all clients, bounded in number."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._per_second = per_minute / _MINUTE_S
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, client: str) -> Allowance:
        """Count one request of this client, if it may send one."""
        now_s = self._clock()
        bucket = self._buckets.setdefault(client, _Bucket(self._per_minute, now_s))
        self._buckets.move_to_end(client)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        gained = (now_s - bucket.filled_s) * self._per_second
        bucket.tokens = min(self._per_minute, bucket.tokens + gained)
        bucket.filled_s = now_s
        lacking = max(0.0, 1 - bucket.tokens)
        if not lacking:
            bucket.tokens -= 1
        return Allowance(
            limit=self._per_minute,
            remaining=int(bucket.tokens),
            reset_s=(self._per_minute - bucket.tokens) / self._per_second,
            wait_s=lacking / self._per_second,
        )


class RateLimit:
    """ASGI middleware: who sends more than its rate is refused with 429, and everybody is told."""

    def __init__(
        self, app: ASGIApp, limiter: RateLimiter, metrics: Metrics, *, keys_are_checked: bool
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._metrics = metrics
        self._keys_are_checked = keys_are_checked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not is_work(scope):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        allowance = self._limiter.take(limited_client(connection, self._keys_are_checked))

        async def telling(message: Message) -> None:
            if message["type"] in _ANSWERS:
                MutableHeaders(scope=message).update(allowance.headers)
            await send(message)

        if allowance.wait_s:
            self._metrics.refused("request_rate")
            await deny(too_fast(allowance), scope, receive, telling)
        else:
            await self._app(scope, receive, telling)


def limited_client(connection: HTTPConnection, keys_are_checked: bool) -> str:
    """Whose requests are counted together."""
    return caller(connection) if keys_are_checked else _site(connection)


def too_fast(allowance: Allowance) -> RateLimitError:
    """Why a request was not let in, and when the next may come."""
    return RateLimitError(
        f"This client may send {allowance.limit} requests a minute; retry after a while.",
        retry_after_s=ceil(allowance.wait_s),
    )


def _site(connection: HTTPConnection) -> str:
    """The address, of IPv6 the network."""
    address = address_of(connection)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, _IPV6_SITE), strict=False))
    return str(address or UNKNOWN)
