"""API keys: what a client presents, and whether it is one that the operator gave out.

Keeps digests of clients' keys and never the keys. Knows headers, files and the environment.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omni_router.errors import ConfigError, ForbiddenError, UnauthorizedError

API_KEYS: Final = "OMNI_API_KEYS"
"""Keys of clients, with commas."""
ADMIN_KEY: Final = "OMNI_ADMIN_KEY"
WORKER_KEY: Final = "OMNI_WORKER_KEY"
WORKER_ADMIN_KEY: Final = "OMNI_WORKER_ADMIN_KEY"
_OTHERS: Final = 0o077
_BEARER: Final = "bearer"
_OFFERED: Final = "openai-insecure-api-key."
_OFFERED_CODED: Final = "omni-api-key-base64url."
"""Before keys that are no names of subprotocols as they are: with `=` or `/`, as base64 has."""
_MAKE_ONE: Final = "make one with: (umask 077; openssl rand -hex 32 > FILE)"
_DIGEST_CHARACTERS: Final = 16
log = logging.getLogger("omni.router")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """All keys of a router."""

    api: KeyRing = KeyRing()
    admin: KeyRing = KeyRing()
    worker: str | None = None
    """What the router itself asks workers with."""
    worker_admin: str | None = None
    """What it gives them new weights with."""

    def check(self, key: str | None, *, needs_admin: bool) -> None:
        """UnauthorizedError, or ForbiddenError for a key of the API on an operator's route, unless
        the key opens what is asked. The admin key opens both."""
        if self.admin.has(key):
            return
        is_user = self.api.has(key)
        if is_user and needs_admin:
            raise ForbiddenError("This needs the admin key; yours is an API key.")
        if is_user:
            return
        wanted = "an admin key" if needs_admin else "an API key"
        if key is None:
            raise UnauthorizedError(
                f"You didn't provide {wanted}; send it as 'Authorization: Bearer KEY'.",
                code="missing_api_key",
            )
        raise UnauthorizedError(f"Incorrect key provided; this needs {wanted}.")


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key in `Authorization: Bearer KEY`, else in `x-api-key`; another `Authorization` as it
    is; else the one among a WebSocket's subprotocols, as web pages send it."""
    authorization = headers.get("Authorization", "").strip()
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == _BEARER:
        return token.strip() or None
    return headers.get("X-Api-Key", "").strip() or authorization or _offered_key(headers)


def caller(headers: Mapping[str, str], address: str | None) -> str:
    """Who asks, for the log: a digest of the key, as workers log it, or without one the address."""
    if key := presented_key(headers):
        return hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return address or "unknown"


def read_keys(
    *,
    typed: Sequence[str],
    api_file: str | None,
    admin_file: str | None,
    worker_file: str | None,
    worker_admin_file: str | None,
) -> Keys:
    """The keys of files, of the environment, and those `typed` on the command line; ConfigError
    for what is none."""
    worker = [*_of_file(worker_file, "worker_key_file"), *_of_environment(WORKER_KEY)]
    worker_admin = [
        *_of_file(worker_admin_file, "worker_admin_key_file"),
        *_of_environment(WORKER_ADMIN_KEY),
    ]
    return Keys(
        api=KeyRing.of(
            [
                *checked(list(typed), "--api-key"),
                *_of_file(api_file, "api_key_file"),
                *_of_environment(API_KEYS),
            ]
        ),
        admin=KeyRing.of([*_of_file(admin_file, "admin_key_file"), *_of_environment(ADMIN_KEY)]),
        worker=next(iter(worker), None),
        worker_admin=next(iter(worker_admin), None),
    )


def warn_if_open(keys: Keys, host: str, port: int) -> None:
    """Say so if everybody who reaches this host may use the router."""
    if not keys.api and not is_loopback(host):
        log.warning(
            "no API key is set: whoever reaches %s port %s may use this router; set "
            "--api-key-file, or listen on 127.0.0.1",
            *(host, port),
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name other than localhost may be
    anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def checked(keys: list[str], place: str) -> list[str]:
    """The keys; ConfigError if no client could send one of them in a header."""
    for number, key in enumerate(keys, 1):
        if not key:
            raise ConfigError(f"{place}: key {number} is empty")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(f"{place}: key {number} is not printable ASCII without spaces")
    return keys


def _of_file(file: str | None, setting: str) -> list[str]:
    """The keys of a file, one a line; empty lines and those that begin with "#" are none."""
    if file is None:
        return []
    path = Path(file)
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{setting}: {path} cannot be read: {exc}; {_MAKE_ONE}") from exc
    if mode & _OTHERS:
        log.warning("%s can be read by others; chmod 600 it", path)
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{setting}: {path} has no key; {_MAKE_ONE}")
    return checked(keys, f"{setting}: {path}")


def _of_environment(name: str) -> list[str]:
    """The keys of a variable; ConfigError if it is set to no key: a secret that was not filled in
    must not open the router."""
    found = os.environ.get(name)
    if found is None:
        return []
    keys = [key.strip() for key in found.split(",") if key.strip()]
    if not keys:
        raise ConfigError(f"{name} is set and has no key; unset it to go without, or give it one")
    return checked(keys, name)


def _offered_key(headers: Mapping[str, str]) -> str | None:
    for offered in headers.get("Sec-WebSocket-Protocol", "").split(","):
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


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
