"""Keys: where clients put them, and where operators keep them."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from omni_router.errors import ConfigError, ForbiddenError, UnauthorizedError
from omni_router.keys import KeyRing, Keys, caller, presented_key, read_keys, warn_if_open


def keys(**more: Any) -> Keys:
    files: dict[str, Any] = {
        "typed": [],
        "api_file": None,
        "admin_file": None,
        "worker_file": None,
        "worker_admin_file": None,
    }
    return read_keys(**files | more)


def file_of(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, "k"),
        ({"Authorization": "bearer  k "}, "k"),
        ({"Authorization": "Bearer "}, None),
        ({"X-Api-Key": "k"}, "k"),
        ({"Authorization": "Basic abc"}, "Basic abc"),
        ({"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.k"}, "k"),
    ],
)
def test_where_clients_put_their_key(headers: dict[str, str], key: str | None) -> None:
    assert presented_key(CIMultiDict(headers)) == key


def test_a_key_that_is_no_name_of_a_subprotocol_is_coded() -> None:
    coded = base64.urlsafe_b64encode(b"a/b==").decode().rstrip("=")
    headers = CIMultiDict({"Sec-WebSocket-Protocol": f"omni-api-key-base64url.{coded}"})
    assert presented_key(headers) == "a/b=="


def test_the_log_tells_clients_apart_without_their_key() -> None:
    one, other = (caller(CIMultiDict({"X-Api-Key": key}), "1.2.3.4") for key in ("a", "b"))
    assert one != other
    assert len(one) == 16
    assert caller(CIMultiDict(), "1.2.3.4") == "1.2.3.4"
    assert caller(CIMultiDict(), None) == "unknown"


def test_keys_open_their_doors() -> None:
    ring = Keys(api=KeyRing.of(["user"]), admin=KeyRing.of(["boss"]))
    ring.check("user", needs_admin=False)
    ring.check("boss", needs_admin=False)
    ring.check("boss", needs_admin=True)
    with pytest.raises(ForbiddenError):
        ring.check("user", needs_admin=True)
    for key in (None, "", "wrong"):
        with pytest.raises(UnauthorizedError):
            ring.check(key, needs_admin=False)


def test_keys_come_from_files_the_environment_and_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_API_KEYS", "c, d")
    monkeypatch.setenv("OMNI_WORKER_KEY", "w")
    found = keys(typed=["a"], api_file=file_of(tmp_path, "# mine\n\nb\n"))
    assert all(found.api.has(key) for key in "abcd")
    assert not found.api.has("# mine")
    assert (found.worker, found.worker_admin) == ("w", None)
    assert not found.admin


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"api_file": "/nowhere"}, "cannot be read"),
        ({"typed": [""]}, "is empty"),
        ({"typed": ["a b"]}, "not printable ASCII"),
    ],
)
def test_what_is_no_key_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        keys(**given)


def test_a_file_or_variable_without_a_key_does_not_open_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="has no key"):
        keys(api_file=file_of(tmp_path, "# none\n"))
    monkeypatch.setenv("OMNI_ADMIN_KEY", " ")
    with pytest.raises(ConfigError, match="OMNI_ADMIN_KEY is set and has no key"):
        keys()


def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys(api_file=file_of(tmp_path, "a\n", 0o644))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize(
    ("host", "is_warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_an_open_router_is_warned_of(
    caplog: pytest.LogCaptureFixture, host: str, is_warned: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_open(Keys(), host, 1)
        warn_if_open(Keys(api=KeyRing.of(["k"])), host, 1)
    assert len(caplog.records) == is_warned
