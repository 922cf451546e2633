"""API keys: what a client presents, and whether it is one that the operator gave out.

Keeps digests of keys and never the keys. Knows headers and files. Knows no routes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers

from omni_core.errors import ConfigError, OmniError

_OTHERS: Final = 0o077
_BEARER: Final = "bearer"
_OFFERED: Final = "openai-insecure-api-key."
_OFFERED_CODED: Final = "omni-api-key-base64url."
"""Before keys that are no names of subprotocols as they are: with `=` or `/`, as base64 has."""
_MAKE_ONE: Final = "make one with: (umask 077; openssl rand -hex 32 > FILE)"
log = logging.getLogger("omni.server")


class UnauthorizedError(OmniError):
    """The route needs a key, and the request has none or a wrong one."""

    status = 401
    default_code = "invalid_api_key"


class ForbiddenError(OmniError):
    """The key is good, and not for this route."""

    status = 403
    default_code = "permission_denied"


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys of which each opens the same doors; without any, it opens none."""

    digests: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[str]) -> KeyRing:
        """The ring of these keys."""
        return cls(tuple(dict.fromkeys(map(_digest, keys))))

    def __bool__(self) -> bool:
        return bool(self.digests)

    def has(self, key: str | None) -> bool:
        """Whether the key is one of these; takes as long for a wrong one as for a right one."""
        if key is None:
            return False
        presented = _digest(key)
        found = False
        for known in self.digests:  # all of them: where one was found must not be told by the time
            found |= hmac.compare_digest(presented, known)
        return found


def presented_key(headers: Headers) -> str | None:
    """The key in `Authorization: Bearer KEY`, else in `x-api-key`; another `Authorization` as it
    is, for it tells clients apart too; else the one among a WebSocket's subprotocols."""
    authorization = headers.get("authorization", "").strip()
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == _BEARER:
        return token.strip() or None
    return headers.get("x-api-key", "").strip() or authorization or _offered_key(headers)


def _offered_key(headers: Headers) -> str | None:
    """The key among the subprotocols of a WebSocket: web pages can set no header of one."""
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        form, dot, key = offered.strip().partition(".")
        if key and form + dot == _OFFERED:
            return key
        if key and form + dot == _OFFERED_CODED:
            return _decoded(key)
    return None


def _decoded(key: str) -> str:
    """Of base64url, with or without its padding; what is none is a wrong key as it stands."""
    try:
        data = base64.b64decode(key + "=" * (-len(key) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return key
    return data.decode("utf-8", "replace")


def read_key_file(path: Path, setting: str) -> list[str]:
    """The keys of a file, one a line; empty lines and those that begin with "#" are none.

    ConfigError if it cannot be read or has no key.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"server.{setting}: {path} cannot be read: {exc}; {_MAKE_ONE}") from exc
    if mode & _OTHERS:
        log.warning("%s can be read by others; chmod 600 it", path)
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"server.{setting}: {path} has no key; {_MAKE_ONE}")
    return checked(keys, f"server.{setting}: {path}")


def checked(keys: list[str], place: str) -> list[str]:
    """The keys; ConfigError if no client could send one of them in a header."""
    for number, key in enumerate(keys, 1):
        if not key:
            raise ConfigError(f"{place}: key {number} is empty")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(f"{place}: key {number} is not printable ASCII without spaces")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
