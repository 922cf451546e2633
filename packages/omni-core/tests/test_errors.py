"""Errors keep what a client needs when they cross a process."""

from __future__ import annotations

import errno

import msgspec
import pytest

from omni_core import errors
from omni_core.errors import ErrorInfo, OmniError, as_omni_error, from_info

SENDABLE = [
    errors.RequestError,
    errors.ContextLengthError,
    errors.MediaError,
    errors.NotFoundError,
    errors.PayloadTooLargeError,
    errors.StageError,
    errors.StageDiedError,
    errors.NotReadyError,
    errors.OutOfMemoryError,
    errors.RelayFullError,
    errors.PluginError,
    errors.ProtocolError,
]


@pytest.mark.parametrize("kind", SENDABLE)
def test_an_error_survives_the_wire(kind: type[OmniError]) -> None:
    sent = kind("too long", code="its_code", param="messages")
    wire = msgspec.msgpack.encode(sent.info("thinker"))
    info = msgspec.msgpack.decode(wire, type=ErrorInfo)
    back = from_info(info)
    assert type(back) is kind
    assert (back.message, back.code, back.param) == ("too long", "its_code", "messages")
    assert (back.status, back.retryable) == (kind.status, kind.retryable)
    assert info.stage == "thinker"


def test_statuses_and_retryability() -> None:
    statuses = [400, 400, 400, 404, 413, 500, 503, 503, 503, 503, 500, 500]
    assert [kind.status for kind in SENDABLE] == statuses
    assert [kind for kind in SENDABLE if kind.retryable] == [
        errors.StageDiedError,
        errors.NotReadyError,
        errors.OutOfMemoryError,
        errors.RelayFullError,
    ]


def test_an_unknown_kind_becomes_a_stage_error_with_its_status() -> None:
    back = from_info(ErrorInfo(kind="TeapotError", message="short", status=418, retryable=True))
    assert type(back) is errors.StageError
    assert (back.status, back.retryable, back.message) == (418, True, "short")


def test_the_default_code_is_the_kinds_own() -> None:
    assert errors.MediaError("x").code == "invalid_media"
    assert errors.MediaError("x", code="too_long").code == "too_long"


def test_a_config_error_joins_its_problems() -> None:
    assert errors.ConfigError("one").problems == ("one",)
    both = errors.ConfigError(["one", "two"])
    assert both.problems == ("one", "two")
    assert str(both) == "one\ntwo"


def test_any_exception_becomes_an_omni_error_that_keeps_its_cause() -> None:
    wrong = ValueError("bad")
    error = as_omni_error(wrong)
    assert type(error) is errors.StageError
    assert error.message == "ValueError: bad"
    assert error.__cause__ is wrong
    known = errors.MediaError("x")
    assert as_omni_error(known) is known


@pytest.mark.parametrize(
    "exc",
    [
        MemoryError("Unable to allocate 58.6 MiB for an array"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 byte"),
    ],
)
def test_an_allocator_that_gives_up_may_be_asked_again(exc: Exception) -> None:
    error = as_omni_error(exc)
    assert (type(error), error.status, error.retryable) == (errors.OutOfMemoryError, 503, True)
    assert type(as_omni_error(OSError(errno.EIO, "Input/output error"))) is errors.StageError
