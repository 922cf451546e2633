"""What an operator asks of a stage process beside its requests, each on a thread of its own.

Knows messages, and what the stages have handed over for it. Knows nothing of sockets or models.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, assert_never

import msgspec

from omni_core.errors import ConfigError, RequestError, as_omni_error
from omni_core.messages import (
    LogLevel,
    NewWeights,
    Profile,
    ProfileReply,
    StageDoc,
    StartTrace,
    StopTrace,
    TraceEnded,
    TraceStarted,
    WeightsReply,
)
from omni_core.specs import WeightLoader
from omni_core.stage.sampler import sample

if TYPE_CHECKING:
    from omni_core.stage.tracer import Tracer

Wish: TypeAlias = Profile | LogLevel | NewWeights | StartTrace | StopTrace
Answer: TypeAlias = ProfileReply | WeightsReply | TraceStarted | TraceEnded

log = logging.getLogger("omni.stage")


class Wishes:
    """Grants the wishes of one process."""

    def __init__(self, post: Callable[[Answer], None]) -> None:
        """`post` sends an answer to the coordinator, from any thread."""
        self._post = post
        self._stages: dict[str, StageDoc] = {}
        self._loaders: dict[str, WeightLoader] = {}
        self._loading = threading.Lock()
        self._tracer: Tracer | None = None

    def begin(self, stages: Sequence[StageDoc]) -> None:
        """These are the stages of the process."""
        self._stages = {stage.name: stage for stage in stages}

    def keep_loader(self, stage: str, loader: WeightLoader) -> None:
        """A stage has handed over what loads its weights."""
        self._loaders[stage] = loader

    def grant(self, process: str, wish: Wish) -> None:
        """Do what is asked, and answer where an answer is awaited."""
        match wish:
            case LogLevel():
                logging.getLogger().setLevel(wish.level)
                log.info("logging from %s on", wish.level)
            case Profile():
                _aside(self._profile, process, wish)
            case NewWeights():
                _aside(self._renew, process, wish)
            case StartTrace():
                _aside(self._trace, process, wish)
            case StopTrace():
                if self._tracer is not None:
                    self._tracer.stop()
            case _:
                assert_never(wish)

    def _profile(self, process: str, wish: Profile) -> None:
        stacks = sample(wish.seconds)
        self._post(ProfileReply(query_id=wish.query_id, process=process, stacks=stacks))

    def _trace(self, process: str, wish: StartTrace) -> None:
        file = Path(wish.directory) / f"trace-{wish.stamp}-{process}.json.gz"
        started = TraceStarted(query_id=wish.query_id, process=process, file=str(file))
        try:
            tracer = self._start_trace(file, wish.seconds)
        except Exception as exc:  # noqa: BLE001 - process edge: not to record harms nobody
            error = as_omni_error(exc).info(process)
            self._post(msgspec.structs.replace(started, error=error))
            return
        self._post(started)
        try:
            ended = TraceEnded(process=process, threads=tracer.finish())
        except Exception as exc:  # process edge: as before
            log.exception("the trace %s", file)
            ended = TraceEnded(process=process, error=as_omni_error(exc).info(process))
        self._tracer = None
        self._post(ended)

    def _start_trace(self, file: Path, seconds: float) -> Tracer:
        if "torch" not in sys.modules:
            raise RequestError(f"no stage of it uses torch: {', '.join(self._stages)}")
        from omni_core.stage.tracer import Tracer  # imports torch

        tracer = Tracer(file, seconds)
        tracer.start()
        self._tracer = tracer
        return tracer

    def _renew(self, process: str, wish: NewWeights) -> None:
        reply = WeightsReply(query_id=wish.query_id, process=process)
        try:
            with self._loading:
                self._take_weights(wish)
        except Exception as exc:  # process edge: the coordinator decides what becomes of us
            log.exception("weights of %s", wish.model_path)
            error = as_omni_error(exc).info(process)
            reply = WeightsReply(query_id=wish.query_id, process=process, error=error)
        self._post(reply)

    def _take_weights(self, wish: NewWeights) -> None:
        for name, stage in self._stages.items():
            if stage.weights == "none":
                continue
            loader = self._loaders.get(name)
            if stage.weights == "fixed" or loader is None:
                raise ConfigError(
                    f"stage {name!r} (engine {stage.ar_engine}) cannot load new weights while it "
                    "runs; start the server with the new checkpoint"
                )
            if wish.load:
                loader.load(wish.model_path)
            else:
                loader.check(wish.model_path)


def _aside(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
