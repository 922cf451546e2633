"""The request that passes a process before it serves.

Knows the pipeline's own API, and who has been passed. Knows no stage, and starts and ends no
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.fleet import Fleet, Replica
from omni_core.errors import OmniError, StageError
from omni_core.types import (
    Finished,
    Message,
    Modality,
    Request,
    RequestParams,
    SamplingParams,
    TextPart,
)

_WARM_UP_TEXT: Final = "Hello"
_WARM_UP_TOKENS: Final = 4
_LIMIT_S: Final = 300.0


def warm_up_request(modalities: tuple[Modality, ...], stages: tuple[str, ...]) -> Request:
    """A short request for these modalities."""
    short = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS)
    hello = Message(role="user", content=(TextPart(text=_WARM_UP_TEXT),))
    params = RequestParams(
        modalities=modalities, sampling=short, stage_params=dict.fromkeys(stages, short)
    )
    return Request(messages=(hello,), params=params, request_id="warm-up")


class WarmUp:
    """Passes short requests through all that is built and serves nobody yet."""

    def __init__(
        self,
        fleet: Fleet,
        coordinator: Coordinator,
        on_ready: Callable[[Replica], None],
        on_unfit: Callable[[Replica, str], None],
    ) -> None:
        """`on_ready` is called with who serves from now on, `on_unfit` with who cannot serve such
        a request and why."""
        self._fleet = fleet
        self._coordinator = coordinator
        self._on_ready = on_ready
        self._on_unfit = on_unfit
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Until nothing is left to warm up; raises what a request failed with."""
        async with self._turn:
            while modalities := self._coordinator.warm_up_modalities():
                pins = await self._pass(warm_up_request(modalities, self._coordinator.stages))
                for replica in self._fleet.warmed(pins):
                    self._on_ready(replica)

    async def _pass(self, request: Request) -> dict[str, str]:
        active = self._coordinator.submit(request, warm_up=True)
        try:
            async with asyncio.timeout(_LIMIT_S):
                while True:
                    events, error = await active.take()
                    if error is not None:
                        raise error
                    if isinstance(events[-1], Finished):
                        return active.pins
        except TimeoutError as exc:
            late = StageError(f"the warm-up request took more than {_LIMIT_S:.0f} s")
            self._blame(active.pins, late)
            raise late from exc
        except OmniError as error:
            if not error.retryable:
                self._blame(active.pins, error)
            raise
        finally:
            self._coordinator.release(active)

    def _blame(self, pins: Mapping[str, str], error: OmniError) -> None:
        """Whoever cannot serve a warm-up request does not serve; its successor may."""
        for process in set(pins.values()):
            replica = self._fleet.find(process)
            if replica is not None and replica.state == "built":
                self._on_unfit(replica, f"the warm-up request failed: {error}")
