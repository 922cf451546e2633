"""Which keys the operator has set, and whether what is served without any can be reached.

Knows files, the environment and addresses. Checks no request.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from omni_core.config import Setting
from omni_core.errors import ConfigError
from omni_server.keys import KeyRing, checked, read_key_file

API_KEYS: Final = "OMNI_API_KEYS"
"""Keys of clients, with commas."""
ADMIN_KEY: Final = "OMNI_ADMIN_KEY"
log = logging.getLogger("omni.server")


def api_keys(server: Mapping[str, Setting], typed: Sequence[str]) -> KeyRing:
    """The keys of clients, from wherever they are set; ConfigError for what is no key."""
    return KeyRing.of(
        [
            *checked(list(typed), "--api-key"),
            *_from_file(server, "api_key_file"),
            *_from_environment(API_KEYS),
        ]
    )


def admin_keys(server: Mapping[str, Setting]) -> KeyRing:
    """The keys of operators; ConfigError for what is no key."""
    return KeyRing.of([*_from_file(server, "admin_key_file"), *_from_environment(ADMIN_KEY)])


def metrics_are_open(server: Mapping[str, Setting]) -> bool:
    """Whether /metrics needs no key where others do."""
    access: str = server["metrics_access"].value
    return access == "open" or (access == "auto" and is_loopback(server["host"].value))


def warn_if_open(server: Mapping[str, Setting], keys: KeyRing) -> None:
    """Say so if everybody who reaches this host may use the server."""
    host: str = server["host"].value
    if not keys and not is_loopback(host):
        log.warning(
            "no API key is set: whoever reaches %s port %s may use this server; set "
            "--api-key-file, or listen on 127.0.0.1",
            *(host, server["port"].value),
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name other than localhost may be
    anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _from_file(server: Mapping[str, Setting], setting: str) -> list[str]:
    path: str | None = server[setting].value
    return [] if path is None else read_key_file(Path(path), setting)


def _from_environment(name: str) -> list[str]:
    """The keys of a variable, which is removed: stage processes inherit the environment.

    ConfigError if it is set to no key: a secret that was not filled in must not open the server.
    """
    found = os.environ.pop(name, None)
    if found is None:
        return []
    keys = [key.strip() for key in found.split(",") if key.strip()]
    if not keys:
        raise ConfigError(f"{name} is set and has no key; unset it to go without, or give it one")
    return checked(keys, name)
