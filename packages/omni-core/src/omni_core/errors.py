"""The exception tree. Every error that may reach a client keeps its HTTP status across processes.

OmniError                      status  retryable
├── RequestError               400     no    the request can never succeed as written
│   ├── ContextLengthError     400     no    code "context_length_exceeded"
│   ├── MediaError             400     no    code "invalid_media"
│   ├── ConflictError          409     no    something else is under way; code "conflict"
│   ├── NotFoundError          404     no    code "model_not_found" and the like
│   └── PayloadTooLargeError   413     no    code "payload_too_large"
├── RequestCancelledError      499     no    somebody ended the request by its id
├── SlowClientError            499     no    the client reads slower than the reply is made
├── RateLimitError             429     yes   the client has its share of a full queue
├── OverloadedError            503     yes   the queue is full
├── DeadlineError              504     no    the request took longer than it may
├── StageError                 500     no    a stage failed on one request
├── StageDiedError             503     yes   the process of a stage ended under the request
├── NotReadyError              503     yes   the pipeline is starting, degraded or closing
├── OutOfMemoryError           503     yes   a device's memory did not suffice for this request
├── RelayFullError             503     yes   no room came in time to hand a tensor to a process
├── ConfigError                500     no    configuration; lists every problem it found
├── PluginError                500     no    a plugin failed to load or clashes with another
└── ProtocolError              500     no    two processes speak different message versions
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable
from typing import Final

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of an error crosses a process border."""

    kind: str
    message: str
    status: int = 500
    code: str | None = None
    param: str | None = None
    retryable: bool = False
    stage: str | None = None


class OmniError(Exception):
    """Base of everything raised on purpose by Omni."""

    status: int = 500
    retryable: bool = False
    default_code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int = 1,
    ) -> None:
        """`retry_after_s` is how long to wait before a retry, if one can help."""
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s

    def info(self, stage: str | None = None) -> ErrorInfo:
        """Describe this error for the wire."""
        return ErrorInfo(
            kind=type(self).__name__,
            message=self.message,
            status=self.status,
            code=self.code,
            param=self.param,
            retryable=self.retryable,
            stage=stage,
        )


class RequestError(OmniError):
    """The request is wrong; `param` names the field the caller must mend."""

    status = 400
    default_code = "invalid_value"


class ContextLengthError(RequestError):
    """Prompt plus requested output do not fit the context."""

    default_code = "context_length_exceeded"


class MediaError(RequestError):
    """An image, audio or video item cannot be fetched, decoded or is over a limit."""

    default_code = "invalid_media"


class NotFoundError(RequestError):
    """A named thing (model, voice, response) does not exist."""

    status = 404
    default_code = "not_found"


class ConflictError(RequestError):
    """What is asked for cannot be begun while something else is under way."""

    status = 409
    default_code = "conflict"


class PayloadTooLargeError(RequestError):
    """The request exceeds a size limit."""

    status = 413
    default_code = "payload_too_large"


class RequestCancelledError(OmniError):
    """Somebody ended the request by its id."""

    status = 499
    default_code = "cancelled"


class SlowClientError(OmniError):
    """More of the reply waits to be read than may."""

    status = 499
    default_code = "slow_client"


class DeadlineError(OmniError):
    """The request took longer than its caller or the server allows."""

    status = 504
    default_code = "deadline_exceeded"


class RateLimitError(OmniError):
    """The client has its share of a full queue waiting; another client would have got a place."""

    status = 429
    retryable = True
    default_code = "rate_limit_exceeded"


class OverloadedError(OmniError):
    """As many requests run and wait as may."""

    status = 503
    retryable = True
    default_code = "overloaded"


class StageError(OmniError):
    """A stage failed on this request; other requests are unaffected."""

    default_code = "stage_error"


class StageDiedError(OmniError):
    """The process of a stage ended while it held this request."""

    status = 503
    retryable = True
    default_code = "stage_died"


class NotReadyError(OmniError):
    """The pipeline cannot take requests at the moment."""

    status = 503
    retryable = True
    default_code = "not_ready"


class OutOfMemoryError(OmniError):
    """The memory of a device did not suffice for this request; others, and the stage, go on."""

    status = 503
    retryable = True
    default_code = "out_of_memory"


class RelayFullError(OmniError):
    """The memory shared with another process stayed full; others, and the stage, go on."""

    status = 503
    retryable = True
    default_code = "relay_full"


class ConfigError(OmniError):
    """Configuration is wrong; `problems` lists all that was found, one sentence each."""

    default_code = "config"

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class PluginError(OmniError):
    """A plugin cannot be loaded, misspells a hook or clashes with another plugin."""

    default_code = "plugin"


class ProtocolError(OmniError):
    """A peer process speaks another message version or sent something undecodable."""

    default_code = "protocol"


_NO_MEMORY: Final = ("DefaultCPUAllocator: can't allocate memory", "ALLOC_FAILED")
"""How torch's allocator of a CPU and the libraries of a card say so, who have no type for it."""

_KINDS: dict[str, type[OmniError]] = {
    cls.__name__: cls
    for cls in (
        RequestError,
        ContextLengthError,
        MediaError,
        NotFoundError,
        PayloadTooLargeError,
        StageError,
        StageDiedError,
        NotReadyError,
        OutOfMemoryError,
        RelayFullError,
        PluginError,
        ProtocolError,
    )
}


def as_omni_error(exc: Exception) -> OmniError:
    """`exc` itself, or an error that says what it was and keeps it as its cause: OutOfMemoryError
    if an allocator gave up, else StageError."""
    if isinstance(exc, OmniError):
        return exc
    kind = OutOfMemoryError if is_out_of_memory(exc) else StageError
    error = kind(f"{type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


def is_out_of_memory(exc: Exception) -> bool:
    """Whether an allocator gave up: Python's, numpy's, the kernel's, or torch's."""
    if isinstance(exc, OSError):
        return exc.errno == errno.ENOMEM
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(exc, torch.OutOfMemoryError):
        return True
    return isinstance(exc, MemoryError) or any(words in str(exc) for words in _NO_MEMORY)


def from_info(info: ErrorInfo) -> OmniError:
    """Rebuild the error that another process described."""
    error = _KINDS.get(info.kind, StageError)(info.message, code=info.code, param=info.param)
    error.status = info.status
    error.retryable = info.retryable
    return error
