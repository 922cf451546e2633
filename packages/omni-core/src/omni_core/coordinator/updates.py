"""New weights for a pipeline that runs: compared first, then taken over by all processes or none.

While they load, requests wait in the queue. If a process fails or dies meanwhile, all of them load
the old checkpoint again; one that cannot do that either is ended, and its successor is built from
the old one. Successors are built from the new checkpoint only once every process serves it. So no
request ever meets weights of two checkpoints.

Knows the order of these steps. Knows nothing of tensors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Literal, Protocol, TypeAlias

from omni_core.coordinator.admission import Occupancy
from omni_core.coordinator.desk import Desk
from omni_core.coordinator.fleet import Fleet
from omni_core.errors import (
    ConfigError,
    ConflictError,
    ErrorInfo,
    NotReadyError,
    OmniError,
    RequestError,
    StageError,
    from_info,
)
from omni_core.messages import NewWeights, ToStage, WeightsReply

Running: TypeAlias = Literal["wait", "abort"]
"""What becomes of requests that run when new weights are to be loaded."""
CHECK_LIMIT_S: Final = 120.0
LOAD_LIMIT_S: Final = 1800.0
_RELEASE_S: Final = 10.0
"""For stages to let go of requests that were ended, however short the caller's patience."""
_LOOK_S: Final = 0.02

log = logging.getLogger("omni.coordinator")


class Requests(Protocol):
    """The requests of the pipeline."""

    def hold(self) -> None:
        """Start none until `go_on`."""

    def go_on(self) -> None:
        """Start them again."""

    def end_running(self, error: OmniError) -> None:
        """End those in the stages."""

    def occupancy(self) -> Occupancy:
        """How many there are."""


class Keeper(Protocol):
    """Who starts processes."""

    def build_from(self, model_path: str) -> None:
        """Successors are built from this checkpoint."""

    def restart(self, process: str, reason: str) -> None:
        """End a process; a successor takes its place."""


class Updates:
    """The weights of one pipeline, one update at a time."""

    def __init__(
        self,
        model_path: str,
        fleet: Fleet,
        requests: Requests,
        keeper: Keeper,
        send: Callable[[str, ToStage], None],
        *,
        load_limit_s: float = LOAD_LIMIT_S,
    ) -> None:
        """`model_path` is what is served now."""
        self.model_path = model_path
        self.desk: Desk[WeightsReply] = Desk(send)
        """To be told of answers and of deaths."""
        self._fleet = fleet
        self._requests = requests
        self._keeper = keeper
        self._load_limit_s = load_limit_s
        self._busy = False
        self._change: asyncio.Task[None] | None = None

    async def run(
        self, model_path: str, *, running: Running, wait_s: float, on_served: Callable[[], None]
    ) -> None:
        """Serve this checkpoint's weights from now on; `on_served` is called once they are.

        RequestError if they do not fit, ConflictError if requests still run after `wait_s` or an
        update is under way, NotReadyError if not every process serves: no weight was touched then.
        StageError if they could not be loaded everywhere: the old ones are served again.
        Cancelled while they load, it leaves that to go on, to the one end or the other.
        """
        if self._busy:
            raise ConflictError("new weights are being loaded already; wait for their end")
        with ExitStack() as undo:
            self._busy = True
            undo.callback(self._free)
            processes = self._processes()
            await self._compare(processes, model_path)
            self._requests.hold()
            undo.callback(self._requests.go_on)
            await self._until_quiet(running, wait_s)
            change = self._change_over(processes, model_path, on_served, undo.pop_all())
            self._change = asyncio.create_task(change)
        await asyncio.shield(self._change)

    def _free(self) -> None:
        self._busy = False

    def _processes(self) -> list[str]:
        down = [r.process for r in self._fleet.replicas if r.state != "ready"]
        if down:
            raise NotReadyError(
                f"process {', '.join(down)} does not serve; load weights once all of them do"
            )
        return [replica.process for replica in self._fleet.replicas]

    async def _compare(self, processes: Sequence[str], model_path: str) -> None:
        replies = await self._ask(processes, model_path, load=False, limit_s=CHECK_LIMIT_S)
        for process in processes:
            reply = replies.get(process)
            if reply is None:
                raise NotReadyError(f"{_no_answer(process)}; load the weights again once it serves")
            if reply.error is not None:
                raise _refusal(reply.error)

    async def _until_quiet(self, running: Running, wait_s: float) -> None:
        """Wait until no stage holds a request."""
        until_s = time.monotonic() + wait_s
        if running == "abort":
            until_s = time.monotonic() + max(wait_s, _RELEASE_S)
            ended = "ended by the operator, who loads new weights; send the request again"
            self._requests.end_running(NotReadyError(ended, code="weights_update"))
        while (now := self._requests.occupancy()).in_flight or now.aborting:
            if time.monotonic() > until_s:
                raise ConflictError(
                    f"after {wait_s:g} s, stages still hold {now.in_flight + now.aborting} "
                    "requests; wait longer, or end them with 'running': 'abort'",
                    param="wait_s",
                    code="requests_running",
                )
            await asyncio.sleep(_LOOK_S)

    async def _change_over(
        self,
        processes: Sequence[str],
        model_path: str,
        on_served: Callable[[], None],
        undo: ExitStack,
    ) -> None:
        """Load them everywhere or nowhere, whoever waits for it; `undo` lets requests go on."""
        with undo:
            if self._processes() != processes:
                raise NotReadyError("a process has died meanwhile; load the weights again")
            replies = await self._ask(processes, model_path, load=True, limit_s=self._load_limit_s)
            problem = _problem(processes, replies)
            if problem is None and self._serving(processes):
                self._keeper.build_from(model_path)
                self.model_path = model_path
                on_served()
                log.info("the weights of %s are served", model_path)
                return
            problem = problem or "a process has died"
            log.error("the weights of %s are not served: %s", model_path, problem)
            await self._go_back(processes, replies)
            raise StageError(
                f"{problem}; the old weights are served again", code="weights_not_loaded"
            )

    async def _go_back(self, processes: Sequence[str], replies: Mapping[str, WeightsReply]) -> None:
        """Have everybody serve the old weights, whatever it has of the new ones."""
        for process in self._living(processes):
            if process not in replies:
                self._keeper.restart(process, "it has not loaded new weights in time")
        asked = self._living(replies)
        back = await self._ask(asked, self.model_path, True, self._load_limit_s)
        for process in self._living(asked):
            if process not in back or back[process].error is not None:
                self._keeper.restart(process, "it could not load the old weights again")

    def _living(self, processes: Iterable[str]) -> list[str]:
        living = self._fleet.living()
        return [process for process in processes if process in living]

    async def _ask(
        self, processes: Sequence[str], model_path: str, load: bool, limit_s: float
    ) -> dict[str, WeightsReply]:
        def question(query_id: int) -> NewWeights:
            return NewWeights(query_id=query_id, model_path=model_path, load=load)

        return await self.desk.ask(processes, question, limit_s)

    def _serving(self, processes: Sequence[str]) -> bool:
        return [r.process for r in self._fleet.replicas if r.state == "ready"] == processes


def _refusal(info: ErrorInfo) -> OmniError:
    """What a process has found is the caller's to mend where it is wrong about the checkpoint."""
    if info.kind == ConfigError.__name__:
        return RequestError(info.message, param="path", code="invalid_checkpoint")
    return from_info(info)


def _problem(processes: Sequence[str], replies: Mapping[str, WeightsReply]) -> str | None:
    """What the first process that could not do it says; None if all could."""
    for process in processes:
        reply = replies.get(process)
        if reply is None:
            return _no_answer(process)
        if reply.error is not None:
            return reply.error.message
    return None


def _no_answer(process: str) -> str:
    return f"process {process!r} has died, or has not answered in time"
