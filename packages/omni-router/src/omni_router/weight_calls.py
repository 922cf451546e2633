"""What operators ask of weights, and what workers are asked: bodies, routes, and one call.

Knows the servers' POST /admin/weights and what its answers mean. Knows no journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import aiohttp
import msgspec

from omni_router.journal import Update
from omni_router.router import Router
from omni_router.worker import Worker

ROUTE: Final = "/admin/weights"
MODELS: Final = "/v1/models"
_OK: Final = 200
_MORE_S: Final = 600.0
"""Than a worker waits for its requests, until its answer no longer comes: weights are large."""
_MOST_BYTES: Final = 2**20
_KEPT: Final = frozenset(
    {
        "checkpoint_not_found",
        "invalid_checkpoint",
        "unsupported_update",
        "requests_running",
        "weights_not_loaded",
        "not_ready",
        "missing_api_key",
        "invalid_api_key",
        "permission_denied",
        "unknown_url",
    }
)
"""Codes with which a worker says that it serves the weights it had."""
_HAS: Final = "already_served"
Result: TypeAlias = Literal["loaded", "kept", "unsent", "unknown"]


class WeightsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /router/v1/weights."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    """As each worker knows it."""
    revision: Annotated[str, msgspec.Meta(pattern="^[!-~]{1,128}$")] | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    """For a worker's requests to end."""


class ResolveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /router/v1/weights/resolve."""

    action: Literal["retry", "accept"]
    """Send the new weights again to all that do not have them; or let workers serve with what they
    have, which the operator has looked at."""
    worker: str | None = None
    """One of them; all if none is named."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of one call."""

    result: Result
    told: str = ""
    started_at: float | None = None
    """Of the process that has the weights."""


class _Error(msgspec.Struct):
    code: str | None = None
    message: str = ""


class _Answer(msgspec.Struct):
    checkpoint: str | None = None
    error: _Error | None = None


class _Model(msgspec.Struct):
    created: float = 0.0


class _Models(msgspec.Struct):
    data: list[_Model]


async def send(router: Router, worker: Worker, update: Update) -> Sent:
    """Have a worker load the weights, and say what came of it; never raises for what it does."""
    try:
        status, said = await _post(router, worker, update)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        return Sent("unsent", f"{type(error).__name__}: {error}")
    except (aiohttp.ClientError, TimeoutError) as error:
        return Sent("unknown", f"{type(error).__name__}: {error}")
    code = None if said.error is None else said.error.code
    if (status == _OK and said.checkpoint is not None) or code == _HAS:
        return Sent("loaded", started_at=await _started_at(router, worker))
    told = f"{status}: {said.error.message if said.error else 'no error object'}"
    return Sent("kept" if code in _KEPT else "unknown", told)


async def _post(router: Router, worker: Worker, update: Update) -> tuple[int, _Answer]:
    body: dict[str, Any] = {"path": update.path, "wait_s": update.wait_s}
    if update.revision is not None:
        body["revision"] = update.revision
    key = router.keys.worker_admin
    async with router.session.post(
        worker.url + ROUTE,
        json=body,
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(
            total=update.wait_s + _MORE_S, sock_connect=router.settings.connect_timeout_s
        ),
        allow_redirects=False,
    ) as reply:
        try:
            return reply.status, msgspec.json.decode(await _whole(reply), type=_Answer)
        except (msgspec.DecodeError, RecursionError):
            return reply.status, _Answer()


async def _started_at(router: Router, worker: Worker) -> float | None:
    """When the process began that has answered; None if it does not say: whoever compares it with
    the next one then finds another."""
    key = router.keys.worker
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=router.settings.probe_timeout_s)
    try:
        async with router.session.get(
            worker.url + MODELS, headers=headers, timeout=timeout, allow_redirects=False
        ) as reply:
            models = msgspec.json.decode(await _whole(reply), type=_Models).data
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, RecursionError):
        return None
    return max((model.created for model in models), default=None)


async def _whole(reply: aiohttp.ClientResponse) -> bytes:
    """Its body, if it is a short one."""
    data = bytearray()
    async for piece in reply.content.iter_any():
        data += piece
        if len(data) > _MOST_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(data)
