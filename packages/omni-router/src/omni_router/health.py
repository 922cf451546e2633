"""Whether workers live: each is asked in its own time, and none waits for another.

One odd answer changes nothing: it takes some failures in a row to be down and some successes to be
ready again. A fault of the gateway's own, met while a request was sent, counts as a failure and has
the worker asked at once; what a worker answers to a client says nothing of its health.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import aiohttp
import msgspec

from omni_router.worker import Ability, Worker, WorkerState

log = logging.getLogger("omni.router")

_JITTER: Final = 0.2
"""Routers that start together do not go on asking together."""
_MOST_BYTES: Final = 8 * 1024 * 1024
_SAMPLE: Final = re.compile(r"^(omni_\w+)(?:\{[^\n]*\})? (\S+)$", re.MULTILINE)
_BASICS: Final = frozenset(
    {
        "omni_requests_total",
        "omni_requests_in_flight",
        "omni_requests_admitted",
        "omni_queue_depth",
        "omni_realtime_sessions",
        "omni_prompt_tokens_total",
        "omni_completion_tokens_total",
        "omni_aborts_pending",
    }
)
"""What is passed on of a worker's metrics, with its labels summed up."""
_LOAD: Final = ("omni_queue_depth", "omni_requests_admitted")
_OK: Final = 200
_ASKED: Final = (
    WorkerState.STARTING,
    WorkerState.READY,
    WorkerState.SUSPECT,
    WorkerState.DOWN,
)
"""States that health decides; others are an operator's."""
_TAKING: Final = (WorkerState.READY, WorkerState.SUSPECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """How often, and what it takes."""

    interval_s: float
    timeout_s: float
    down_after: int
    """Failures in a row."""
    up_after: int
    """Successes in a row, of a worker that was down."""
    cut_after_s: float
    """Without an answer, until what it has begun is given up."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a worker says of itself."""

    ready: bool
    why: str
    reached: bool = True
    """It answered, whatever it said."""
    abilities: tuple[Ability, ...] = ()
    started_at: float | None = None
    said: Mapping[str, float] = field(default_factory=dict)
    """Of its metrics."""


class Watch:
    """Asks one worker, until it is cancelled."""

    def __init__(
        self,
        worker: Worker,
        session: aiohttp.ClientSession,
        hysteresis: Hysteresis,
        on_change: Callable[[Worker], None],
        *,
        headers: dict[str, str],
        random: Random,
    ) -> None:
        """`headers` of what is asked; `on_change` is told once requests may go elsewhere."""
        self._worker = worker
        self._session = session
        self._hysteresis = hysteresis
        self._on_change = on_change
        self._headers = headers
        self._random = random
        self._now = asyncio.Event()
        self._successes = 0
        self._failures = 0
        self._reached_s = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._now.clear()
            self.hear(await self._ask())
            try:
                async with asyncio.timeout(self.pause_s()):
                    await self._now.wait()
            except TimeoutError:
                continue

    def pause_s(self) -> float:
        """Until the next question."""
        spread = self._random.uniform(1 - _JITTER, 1 + _JITTER)
        return self._hysteresis.interval_s * spread

    def fault(self, why: str, *, is_certain: bool) -> None:
        """A request met a fault of the worker's: look at once. `is_certain` if it could not be
        sent at all, which counts as a probe that fails does."""
        if is_certain:
            self.hear(Heard(ready=False, why=why, reached=False))
        self._now.set()

    def look(self) -> None:
        """Ask it at once."""
        self._now.set()

    def hear(self, heard: Heard) -> None:
        """Take in what it says, or that it says nothing."""
        if heard.reached:
            self._reached_s = time.monotonic()
        if heard.ready:
            self._successes, self._failures = self._successes + 1, 0
            self._learn(heard)
        else:
            self._successes, self._failures = 0, self._failures + 1
        if self._worker.state in _ASKED:
            self._judge(heard)
        silent_s = time.monotonic() - self._reached_s
        if silent_s >= self._hysteresis.cut_after_s and self._worker.cuts:
            cut = self._worker.cut_all(heard.why)
            log.warning("worker %s is silent: %d requests are cut", self._worker.name, cut)

    def _judge(self, heard: Heard) -> None:
        worker = self._worker
        if self._is_up():
            if worker.become(WorkerState.READY, heard.why):
                log.info("worker %s is ready (%s)", worker.name, worker.url)
                self._on_change(worker)
        elif self._failures >= self._hysteresis.down_after:
            if worker.become(WorkerState.DOWN, heard.why):
                log.warning("worker %s is down: %s", worker.name, heard.why)
                self._on_change(worker)
        elif self._failures and worker.state is WorkerState.READY:
            worker.become(WorkerState.SUSPECT, heard.why)
            self._on_change(worker)

    def _is_up(self) -> bool:
        if self._worker.state is WorkerState.DOWN:
            return self._successes >= self._hysteresis.up_after
        return self._successes > 0

    def _learn(self, heard: Heard) -> None:
        worker = self._worker
        if heard.started_at != worker.started_at:
            worker.epoch += 1
            worker.started_at = heard.started_at
            if worker.state in _TAKING:  # nobody has noticed that it was away
                worker.become(WorkerState.STARTING, "it has started again")
        worker.abilities = heard.abilities
        worker.said, worker.in_flight_then = heard.said, worker.in_flight
        worker.reported = round(sum(heard.said.get(name, 0.0) for name in _LOAD))

    async def _ask(self) -> Heard:
        try:
            async with asyncio.timeout(self._hysteresis.timeout_s):
                return await self._hear_all()
        except TimeoutError:
            return Heard(False, f"no answer in {self._hysteresis.timeout_s:g} s", reached=False)
        except aiohttp.ClientError as error:
            return Heard(False, f"{type(error).__name__}: {error}", reached=False)
        except (msgspec.ValidationError, msgspec.DecodeError, ValueError, RecursionError) as error:
            return Heard(False, f"its answer makes no sense: {error}")

    async def _hear_all(self) -> Heard:
        status, _ = await self._get("/ready")
        if status != _OK:
            return Heard(False, f"GET /ready says {status}")
        status, said = await self._get("/v1/models")
        if status != _OK:
            return Heard(False, f"GET /v1/models says {status}; see --worker-key-file")
        models = [_ability(one) for one in msgspec.json.decode(said, type=_Models).data]
        status, metrics = await self._get("/metrics")
        return Heard(
            True,
            "it is ready",
            abilities=tuple(models),
            started_at=max((float(one.listed.get("created", 0)) for one in models), default=None),
            said=_basics(metrics) if status == _OK else {},
        )

    async def _get(self, path: str) -> tuple[int, bytes]:
        url = self._worker.url + path
        async with self._session.get(url, headers=self._headers, allow_redirects=False) as reply:
            data = bytearray()
            async for piece in reply.content.iter_any():
                data += piece
                if len(data) > _MOST_BYTES:
                    raise ValueError(f"GET {path} has over {_MOST_BYTES} bytes")
            return reply.status, bytes(data)


class _Model(msgspec.Struct):
    """A model object; what is beyond OpenAI's may be absent."""

    id: str
    created: float = 0.0
    input_modalities: list[str] = []
    output_modalities: list[str] = []
    voices: list[str] = []
    capabilities: dict[str, Any] = {}


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


def _ability(listed: dict[str, Any]) -> Ability:
    model = msgspec.convert(listed, _Model)
    can = model.capabilities
    return Ability(
        model=model.id,
        inputs=frozenset(model.input_modalities),
        outputs=frozenset(model.output_modalities),
        capabilities=frozenset(name for name in can if can[name] is True),
        known_capabilities=frozenset(can),
        voices=frozenset(map(str.casefold, model.voices)),
        listed=listed,
    )


def _basics(text: bytes) -> dict[str, float]:
    """{name: sum over its labels} of those that are passed on; ValueError for what is no number."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text.decode("utf-8", "replace")):
        if name in _BASICS:
            found[name] = found.get(name, 0.0) + float(value)
    return found
