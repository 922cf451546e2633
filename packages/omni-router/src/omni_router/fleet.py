"""All workers, and which of them a request goes to.

Knows what requests need and how workers are. Knows no HTTP and no queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from omni_router.errors import BadRequestError, NotFoundError, RouterError, UnavailableError
from omni_router.needs import Needs
from omni_router.routing.affinity import preferred, ranked
from omni_router.routing.policies import POLICIES, Load, PolicyName, Turn
from omni_router.settings import Affinity
from omni_router.worker import Ability, Worker, WorkerState

_TAKING: Final = (WorkerState.READY, WorkerState.SUSPECT)
CLONING: Final = "voice_cloning"
"""The capability of workers that keep uploaded voices."""
_NEWCOMER: Final = 0.1
"""Share of its weight that a worker begins with, where starts are slow."""


class Fleet:
    """The workers by name, in the order in which they were added."""

    def __init__(
        self,
        *,
        policy: PolicyName,
        affinity: Sequence[Affinity],
        imbalance: float,
        slow_start_s: float,
        random: Random | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers: dict[str, Worker] = {}
        self._policy = POLICIES[policy]
        self._affinity = tuple(affinity)
        self._imbalance = imbalance
        self._slow_start_s = slow_start_s
        self._random = random or Random()
        self._now = now
        self._turns = 0

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, name: str) -> Worker:
        """NotFoundError if there is none of this name."""
        if (worker := self._workers.get(name)) is None:
            names = ", ".join(self._workers) or "none"
            raise NotFoundError(
                f"There is no worker {name!r}; there are: {names}.", code="unknown_worker"
            )
        return worker

    def add(self, worker: Worker) -> None:
        """Its name must be new."""
        assert worker.name not in self._workers
        self._workers[worker.name] = worker

    def remove(self, name: str) -> Worker:
        """It gets no request any more; NotFoundError if there is none of this name."""
        worker = self.get(name)
        del self._workers[name]
        return worker

    def ready(self) -> list[Worker]:
        """Those that take requests."""
        return [worker for worker in self if worker.state in _TAKING]

    def asked(self) -> list[Worker]:
        """Those that may know of what was asked before: the ready ones, and those that drain."""
        return [one for one in self if one.state in (*_TAKING, WorkerState.DRAINING)]

    @property
    def models_differ(self) -> bool:
        """Whether a request's model decides where it may go."""
        served = {tuple(ability.model for ability in worker.abilities) for worker in self.ready()}
        return len(served) > 1

    def choose(self, needs: Needs, without: Iterable[Worker] = ()) -> Worker | None:
        """Who gets a request, of those that are not in `without`; None while all that could are
        full. RouterError if nobody can answer it, now or ever."""
        able = [worker for worker in self._able(needs) if worker not in without]
        if not able:
            raise UnavailableError("No other worker can take the request; retry in a moment.")
        able = [worker for worker in able if worker.state is WorkerState.READY] or able
        kind, key = self._key(needs, able)
        if key is not None and kind == "voice":  # another has not heard of it
            able = [able[ranked(key, [worker.name for worker in able])[0]]]
        free = [worker for worker in able if not worker.is_full]
        if not free:
            return None
        loads = [self._load(worker) for worker in free]
        self._turns += 1
        if key is not None:
            names = [worker.name for worker in free]
            return free[preferred(key, names, loads, self._imbalance)]
        return free[self._policy(loads, Turn(self._turns, self._random))]

    def _able(self, needs: Needs) -> list[Worker]:
        """Workers that are ready and can answer; RouterError if there are none."""
        found: list[tuple[Worker, Ability]] = []
        lacking: list[str] = []
        for worker in self.ready():
            ability = worker.ability(needs.model)
            if ability is None and needs.model is None and worker.abilities:
                found.append((worker, worker.abilities[0]))  # the worker asks for a model's name
            elif ability is not None:
                lack = ability.lacks(needs)
                lacking += [lack] if lack else []
                found += [] if lack else [(worker, ability)]
        if not found:
            raise self._nobody(needs, lacking)
        speakers = [one for one in found if needs.voice in one[1].voices] or found
        return [worker for worker, _ in speakers]

    def _nobody(self, needs: Needs, lacking: list[str]) -> RouterError:
        """Why nobody answers: whether it is the request, or that workers are away."""
        ready = self.ready()
        if lacking and all(worker.state is not WorkerState.DOWN for worker in self):
            return BadRequestError(
                f"No worker that serves {needs.model or 'this model'} has {lacking[0]}; "
                "GET /v1/models lists what each can do.",
                code="unsupported_capability",
            )
        known = {ability.model for worker in self for ability in worker.abilities}
        if needs.model is not None and ready and needs.model not in known:
            return NotFoundError(
                f"The model {needs.model!r} does not exist here; GET /v1/models lists those that "
                "do.",
                param="model",
                code="model_not_found",
            )
        return UnavailableError(
            f"{len(ready)} of {len(self)} workers are ready, and none of them can answer this; "
            "retry in a moment."
        )

    def _key(self, needs: Needs, able: list[Worker]) -> tuple[Affinity | None, str | None]:
        """What the request has in common with those that belong to it, and of which kind."""
        for kind in self._affinity:
            value = getattr(needs, kind)
            if value is None or (kind == "voice" and not _is_uploaded(value, able)):
                continue
            return kind, f"{kind}\0{value}"
        return None, None

    def _load(self, worker: Worker) -> Load:
        age_s = self._now() - worker.ready_since_s
        grown = min(1.0, age_s / self._slow_start_s) if self._slow_start_s else 1.0
        return Load(worker.load, worker.weight * max(_NEWCOMER, grown))


def _is_uploaded(voice: str, able: list[Worker]) -> bool:
    """Whether a voice is none of a checkpoint's, where workers take others."""
    known = [ability for worker in able for ability in worker.abilities]
    takes_others = any(CLONING in ability.capabilities for ability in known)
    return takes_others and all(voice not in ability.voices for ability in known)
