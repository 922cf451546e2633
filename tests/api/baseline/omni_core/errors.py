from __future__ import annotations
import errno
import sys
from collections.abc import Iterable
from typing import Final
import msgspec

class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    message: str
    status: int = 500
    code: str | None = None
    param: str | None = None
    retryable: bool = False
    stage: str | None = None

class OmniError(Exception):
    status: int = 500
    retryable: bool = False
    default_code: str | None = None

    def __init__(self, message: str, *, code: str | None=None, param: str | None=None, retry_after_s: int=1) -> None:
        ...

    def info(self, stage: str | None=None) -> ErrorInfo:
        ...

class RequestError(OmniError):
    status = 400
    default_code = 'invalid_value'

class ContextLengthError(RequestError):
    default_code = 'context_length_exceeded'

class MediaError(RequestError):
    default_code = 'invalid_media'

class NotFoundError(RequestError):
    status = 404
    default_code = 'not_found'

class ConflictError(RequestError):
    status = 409
    default_code = 'conflict'

class PayloadTooLargeError(RequestError):
    status = 413
    default_code = 'payload_too_large'

class RequestCancelledError(OmniError):
    status = 499
    default_code = 'cancelled'

class SlowClientError(OmniError):
    status = 499
    default_code = 'slow_client'

class DeadlineError(OmniError):
    status = 504
    default_code = 'deadline_exceeded'

class RateLimitError(OmniError):
    status = 429
    retryable = True
    default_code = 'rate_limit_exceeded'

class OverloadedError(OmniError):
    status = 503
    retryable = True
    default_code = 'overloaded'

class StageError(OmniError):
    default_code = 'stage_error'

class StageDiedError(OmniError):
    status = 503
    retryable = True
    default_code = 'stage_died'

class NotReadyError(OmniError):
    status = 503
    retryable = True
    default_code = 'not_ready'

class OutOfMemoryError(OmniError):
    status = 503
    retryable = True
    default_code = 'out_of_memory'

class RelayFullError(OmniError):
    status = 503
    retryable = True
    default_code = 'relay_full'

class ConfigError(OmniError):
    default_code = 'config'

    def __init__(self, problems: str | Iterable[str]) -> None:
        ...

class PluginError(OmniError):
    default_code = 'plugin'

class ProtocolError(OmniError):
    default_code = 'protocol'

def as_omni_error(exc: Exception) -> OmniError:
    ...

def is_out_of_memory(exc: Exception) -> bool:
    ...

def from_info(info: ErrorInfo) -> OmniError:
    ...
