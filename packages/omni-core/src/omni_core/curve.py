"""Who may talk to us over TCP: whoever has the secret. ZMQ's CURVE does the cryptography.

The key that all processes of a pipeline listen with is made from a secret file which every host
has. Its public half is never sent and is needed to say the first word, so a peer without the secret
does not get past the handshake, and what passes is encrypted with keys of that connection alone.
Knows keys and socket options. Knows nothing of messages.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85

from omni_core.errors import ConfigError

MAX_FRAME_BYTES: Final = 64 << 20
"""A frame from the network that says it is larger ends its connection before it has any memory."""
_MIN_SECRET_CHARACTERS: Final = 32
_OTHERS: Final = 0o077
_HEARTBEAT_MS: Final = 2_000
_SILENCE_MS: Final = 8_000
"""A peer whose host or cable is gone is given up after this."""
_HANDSHAKE_MS: Final = 5_000
_MAKE_ONE: Final = "make one with: (umask 077; openssl rand -base64 48 > FILE)"


class Curve:
    """The keys of one pipeline."""

    def __init__(self, secret_key: bytes) -> None:
        """`secret_key` in z85, of the one key everybody listens with."""
        self._secret_key = secret_key
        self._public_key = zmq.curve_public(secret_key)

    @classmethod
    def derive(cls, secret: str) -> Curve:
        """From a shared secret. Slow on purpose, for those who choose one themselves."""
        key = hashlib.scrypt(secret.encode(), salt=b"omni tcp 1", n=1 << 14, r=8, p=1, dklen=32)
        return cls(z85.encode(key))

    @classmethod
    def load(cls, path: Path) -> Curve | None:
        """What `save` wrote; None if there is nothing."""
        return cls(path.read_bytes()) if path.exists() else None

    def save(self, path: Path) -> None:
        """For processes of this host and user."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:
            file.write(self._secret_key)

    def guard(self, listening: zmq.Socket[Any]) -> None:
        """Let in over what is bound from here on only who has the secret."""
        listening.curve_secretkey = self._secret_key
        listening.curve_publickey = self._public_key
        listening.curve_server = True
        listening.maxmsgsize = MAX_FRAME_BYTES
        _keep_alive(listening)

    def join(self, connecting: zmq.Socket[Any]) -> None:
        """Show at what is connected from here on that we have the secret."""
        connecting.curve_publickey, connecting.curve_secretkey = zmq.curve_keypair()
        connecting.curve_serverkey = self._public_key
        _keep_alive(connecting)


def read_secret(path: Path) -> Curve:
    """The keys of a secret file; a ConfigError says what is wrong with it and how to make one."""
    if not zmq.has("curve"):
        raise ConfigError("TCP needs a libzmq with CURVE, which this one is not; reinstall pyzmq")
    try:
        mode = path.stat().st_mode
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"secret file {path} cannot be read: {exc}; {_MAKE_ONE}") from exc
    if mode & _OTHERS:
        raise ConfigError(f"secret file {path} is open to other users; chmod 600 {path}")
    if len(secret) < _MIN_SECRET_CHARACTERS:
        raise ConfigError(
            f"secret file {path} has {len(secret)} characters and needs "
            f"{_MIN_SECRET_CHARACTERS}; {_MAKE_ONE}"
        )
    return Curve.derive(secret)


def _keep_alive(socket: zmq.Socket[Any]) -> None:
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.heartbeat_timeout = _SILENCE_MS
    socket.handshake_ivl = _HANDSHAKE_MS
