"""A pipeline without a model: the words of a message come back as text and as tones.

`intake -> writer -> voice`, free of torch, with words that misbehave on purpose, for testing what
carries requests rather than what computes them:

    fail:intake  fail:writer   fail the request there with a RequestError
    crash:writer               raise in the writer's loop, which ends its process
    die:writer                 end the writer's process at once
    busy                       compute for three seconds in pure Python
    seize                      keep the interpreter in native code for ever
    hang                       say "hang", then hold the request and its tensor until it is aborted
    big                        hand on a tensor that is too large to travel inline
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from types import ModuleType
from typing import assert_never

import msgspec
import numpy as np

from omni_core.errors import ConfigError, RequestError, StageError
from omni_core.hookspecs import hookimpl
from omni_core.plugins import Plugins
from omni_core.scheduler.base import (
    Abort,
    Chunk,
    ChunksDone,
    Close,
    Inbox,
    InboxItem,
    Outbox,
    Scheduler,
    Work,
)
from omni_core.scheduler.cadence import Cadence
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.scheduler.streaming import StreamingScheduler
from omni_core.specs import ModelInfo, PipelineConfig, Ref, StageConfig, StageContext
from omni_core.testing.echo_weights import EchoWeights
from omni_core.types import (
    FloatArray,
    IntArray,
    Message,
    Payload,
    RequestParams,
    TextDelta,
    TextPart,
    Usage,
)

SAMPLE_RATE = 24_000
SAMPLES_PER_WORD = 240
BIG_BYTES = 4 * 1024 * 1024
BUSY_S = 3.0


def intake(works: list[Work]) -> list[Payload | RequestError]:
    """Messages to words."""
    results: list[Payload | RequestError] = []
    for work in works:
        messages = msgspec.msgpack.decode(work.payload["messages"], type=tuple[Message, ...])
        text = " ".join(p.text for m in messages for p in m.content if isinstance(p, TextPart))
        words = text.split()
        payload: Payload = {"words": words}
        if "big" in words:
            payload["ballast"] = np.arange(BIG_BYTES // 8)
        failed = "fail:intake" in words
        results.append(RequestError("asked to fail", param="messages") if failed else payload)
    return results


class Writer:
    """Says one word at a time."""

    def __init__(self, weights: EchoWeights) -> None:
        self._weights = weights
        self._hanging: dict[str, Work] = {}
        self._requests = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Until `Close`."""
        while self._take(inbox.get(), outbox):
            pass  # and keep nothing of an item, perhaps another process's memory, meanwhile

    def _take(self, item: InboxItem | None, outbox: Outbox) -> bool:
        match item:
            case Work():
                self._requests += 1
                self._say(item, outbox)
            case Abort():
                self._hanging.pop(item.request_id, None)
                outbox.released(item.request_id)
            case Close():
                return False
            case Chunk() | ChunksDone() | None:
                pass
            case _:
                assert_never(item)
        return True

    def stats(self) -> dict[str, float]:
        """See `Scheduler.stats`."""
        return {"requests": self._requests, "waiting": 0, "running": len(self._hanging)}

    def _say(self, work: Work, outbox: Outbox) -> None:
        rid, words = work.request_id, work.payload["words"]
        outbox.send(rid, {})
        for number, word in enumerate(words):
            match word:
                case "fail:writer":
                    outbox.fail(rid, RequestError("asked to fail", code="asked"))
                    return
                case "crash:writer":
                    raise RuntimeError("asked to crash")
                case "die:writer":
                    os._exit(3)
                case "busy":
                    _compute(BUSY_S)
                case "seize":
                    re.match("(a*)*b", "a" * 60)
                case "big" if int(work.payload["ballast"].sum()) != _ballast_sum():
                    raise RuntimeError("the ballast arrived damaged")
            if word == "hang":
                self._hanging[rid] = work
            outbox.emit(rid, TextDelta(text=f"{word}{self._weights.word} ", token_ids=(number,)))
            outbox.stream(rid, np.full((1, 1), number, dtype=np.int64))
            if word == "hang":
                return
        outbox.stream_done(rid)
        outbox.complete(rid, usage=Usage(prompt_tokens=len(words), text_tokens=len(words)))


class ToneVocoder:
    """Word n becomes 240 samples of n / 1000."""

    sample_rate = SAMPLE_RATE
    max_replies: int | None = None

    def open(self, params: RequestParams, payload: Payload) -> None:
        """No state."""

    def push(self, states: list[None], codes: list[IntArray]) -> list[FloatArray]:
        """See `StreamingVocoder.push`; StageError for codes of more than one group."""
        if any(len(c) != 1 for c in codes):
            raise StageError("words come one beside the other: codes must be (1, frames)")
        return [np.repeat(c[0] / 1000, SAMPLES_PER_WORD).astype(np.float32) for c in codes]

    def flush(self, state: None) -> FloatArray:
        """Nothing is owed."""
        return np.zeros(0, dtype=np.float32)

    def close(self, state: None) -> None:
        """No state."""


def build_intake(ctx: StageContext) -> Scheduler:
    """Factory of the entry stage."""
    return SimpleScheduler(
        intake,
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
    )


def build_writer(ctx: StageContext) -> Scheduler:
    """Factory of the text terminal."""
    return Writer(EchoWeights(ctx))


def build_voice(ctx: StageContext) -> Scheduler:
    """Factory of the audio terminal."""
    EchoWeights(ctx)
    frames = ctx.stage.options["frames"]
    if frames < 1:
        raise ConfigError(f"stage {ctx.stage.name!r}: frames is {frames}; it must be at least 1")
    return StreamingScheduler(ToneVocoder(), cadence=Cadence(steady_frames=frames))


def route_writer(params: RequestParams, payload: Payload) -> list[str]:
    """Only spoken requests reach the voice."""
    return ["voice"] if "audio" in params.modalities else []


def describe(model_path: str) -> ModelInfo:
    """The echo has one voice and a short memory."""
    return ModelInfo(
        context_length=1000, voices=("Echo",), default_voice="Echo", sample_rate=SAMPLE_RATE
    )


def _stages() -> tuple[StageConfig, ...]:
    module = __name__
    return (
        StageConfig(
            name="intake",
            factory=Ref(f"{module}:build_intake"),
            next=("writer",),
            weights="none",
            max_concurrency=2,
        ),
        StageConfig(
            name="writer",
            factory=Ref(f"{module}:build_writer"),
            next=("voice",),
            stream_to=("voice",),
            route_fn=Ref(f"{module}:route_writer"),
            terminal="text",
            weights="loads",
        ),
        StageConfig(
            name="voice",
            factory=Ref(f"{module}:build_voice"),
            terminal="audio",
            weights="loads",
            options={"frames": 4},
        ),
    )


PIPELINE = PipelineConfig(
    name="echo",
    architectures=("EchoForTests",),
    variants={"speech": _stages()},
    default_variant="speech",
    entry="intake",
    describe=describe,
    check_update=Ref("omni_core.testing.echo_weights:same_model"),
    cpu_processes={"intake": "front", "writer": "front"},
)


@hookimpl
def register_pipelines() -> list[PipelineConfig]:
    """The hook of the echo plugin."""
    return [PIPELINE]


def plugins() -> Plugins:
    """A registry that holds the echo plugin and nothing installed."""
    module = ModuleType("echo_plugin")
    module.register_pipelines = register_pipelines  # type: ignore[attr-defined]
    registry = Plugins()
    registry.register(module, "echo")
    return registry


def write_checkpoint(directory: Path) -> str:
    """A directory that `Pipeline.load` takes for the echo model; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": list(PIPELINE.architectures)}
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def _compute(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def _ballast_sum() -> int:
    count = BIG_BYTES // 8
    return count * (count - 1) // 2
