"""A pipeline of three stages that do nothing, for measuring what lies between stages.

`first -> second => third`: the first makes the payload that the request asks for, the second passes
it on and streams the chunks that it asks for, the third hands tensor and chunks to the client.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec
import numpy as np

from omni_core.hookspecs import hookimpl
from omni_core.pipeline import Pipeline
from omni_core.plugins import Plugins
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Outbox, Scheduler, Work
from omni_core.specs import ModelInfo, PipelineConfig, Ref, StageConfig, StageContext
from omni_core.types import (
    AudioDelta,
    FloatArray,
    Message,
    Modality,
    Payload,
    Request,
    RequestParams,
    TextPart,
)

TURN_CHUNKS: Final = 64
"""Streamed between two looks at the inbox, shared by all open streams."""
MODALITIES: Final[tuple[Modality, ...]] = ("audio",)
_ITEM_BYTES: Final = 4
_ENV: Final = {
    "PYTHONPATH": os.pathsep.join(
        filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    )
}


def ask(*, tensor_bytes: int = 0, chunks: int = 0, chunk_bytes: int = 0) -> Request:
    """A request that carries a tensor through all stages, or streams chunks to the client."""
    text = f"{tensor_bytes} {chunks} {chunk_bytes}"
    message = Message(role="user", content=(TextPart(text=text),))
    return Request(messages=(message,), params=RequestParams(modalities=MODALITIES))


class First:
    """Makes the payload."""

    def __init__(self) -> None:
        self._requests = 0
        self._messages = msgspec.msgpack.Decoder(tuple[Message, ...])
        self._tensors: dict[int, FloatArray] = {}

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """See `Scheduler.run`."""
        while True:
            for item in inbox.drain(block=True):
                match item:
                    case Work():
                        self._requests += 1
                        outbox.pass_on(item.request_id, self._payload(item))
                    case Abort():
                        outbox.released(item.request_id)
                    case Close():
                        return

    def stats(self) -> dict[str, float]:
        """See `Scheduler.stats`."""
        return {"requests": self._requests, "waiting": 0, "running": 0}

    def _payload(self, work: Work) -> Payload:
        [message] = self._messages.decode(work.payload["messages"])
        [part] = message.content
        words = part.text.split()
        if len(words) != 3:  # the warm-up request
            return {}
        tensor_bytes, chunks, chunk_bytes = map(int, words)
        if chunks:
            return {"chunks": chunks, "chunk_bytes": chunk_bytes}
        return {"tensor": self._tensor(tensor_bytes)} if tensor_bytes else {}

    def _tensor(self, size: int) -> FloatArray:
        if size not in self._tensors:
            self._tensors[size] = np.zeros(size // _ITEM_BYTES, np.float32)
        return self._tensors[size]


class Second:
    """Passes on, and streams."""

    def __init__(self) -> None:
        self._requests = 0
        self._streams: dict[str, tuple[int, FloatArray]] = {}
        """{request: chunks still to send, what each holds}."""

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """See `Scheduler.run`."""
        while True:
            for item in inbox.drain(block=not self._streams):
                match item:
                    case Work():
                        self._enter(item, outbox)
                    case Abort():
                        self._streams.pop(item.request_id, None)
                        outbox.released(item.request_id)
                    case Close():
                        return
            self._turn(outbox)

    def stats(self) -> dict[str, float]:
        """See `Scheduler.stats`."""
        return {"requests": self._requests, "waiting": 0, "running": len(self._streams)}

    def _enter(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        if chunks := work.payload.get("chunks"):
            outbox.send(work.request_id, work.payload)
            samples = np.zeros(work.payload["chunk_bytes"] // _ITEM_BYTES, np.float32)
            self._streams[work.request_id] = chunks, samples
        else:
            outbox.pass_on(work.request_id, work.payload)

    def _turn(self, outbox: Outbox) -> None:
        share = max(1, TURN_CHUNKS // max(1, len(self._streams)))
        for request_id, (left, samples) in list(self._streams.items()):
            count = min(left, share)
            for _ in range(count):
                outbox.stream(request_id, samples)
            self._streams[request_id] = left - count, samples
            if left == count:
                del self._streams[request_id]
                outbox.stream_done(request_id)
                outbox.done(request_id)


class Third:
    """Hands everything to the client."""

    sample_rate = 24_000

    def __init__(self) -> None:
        self._requests = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """See `Scheduler.run`."""
        while True:
            for item in inbox.drain(block=True):
                match item:
                    case Work(request_id, _, payload):
                        self._requests += 1
                        if "tensor" in payload:
                            self._emit(request_id, payload["tensor"], outbox)
                        if "chunks" not in payload:
                            outbox.complete(request_id)
                    case Chunk(request_id, _, data):
                        self._emit(request_id, data, outbox)
                    case ChunksDone(request_id):
                        outbox.complete(request_id)
                    case Abort(request_id):
                        outbox.released(request_id)
                    case Close():
                        return

    def stats(self) -> dict[str, float]:
        """See `Scheduler.stats`."""
        return {"requests": self._requests, "waiting": 0, "running": 0}

    def _emit(self, request_id: str, samples: FloatArray, outbox: Outbox) -> None:
        outbox.emit(request_id, AudioDelta(samples=samples, sample_rate=self.sample_rate))


def build_first(ctx: StageContext) -> Scheduler:
    """Factory of the first stage."""
    return First()


def build_second(ctx: StageContext) -> Scheduler:
    """Factory of the second stage."""
    return Second()


def build_third(ctx: StageContext) -> Scheduler:
    """Factory of the third stage."""
    return Third()


def describe(model_path: str) -> ModelInfo:
    """Nothing to know."""
    return ModelInfo(context_length=1, sample_rate=Third.sample_rate)


PIPELINE: Final = PipelineConfig(
    name="passing",
    architectures=("PassingForBenches",),
    variants={
        "plain": (
            StageConfig(
                name="first", factory=Ref("passing:build_first"), next=("second",), env=_ENV
            ),
            StageConfig(
                name="second",
                factory=Ref("passing:build_second"),
                next=("third",),
                stream_to=("third",),
                env=_ENV,
            ),
            StageConfig(
                name="third", factory=Ref("passing:build_third"), terminal="audio", env=_ENV
            ),
        )
    },
    default_variant="plain",
    entry="first",
    describe=describe,
    cpu_processes=dict.fromkeys(("first", "second", "third"), "all"),
)


@hookimpl
def register_pipelines() -> list[PipelineConfig]:
    """The hook of this plugin."""
    return [PIPELINE]


def load(directory: Path, *, apart: bool) -> Pipeline:
    """The pipeline, with a process for each stage or one for all."""
    config = {"architectures": list(PIPELINE.architectures)}
    (directory / "config.json").write_text(json.dumps(config))
    module = ModuleType("passing_plugin")
    module.register_pipelines = register_pipelines  # type: ignore[attr-defined]
    plugins = Plugins()
    plugins.register(module, "passing")
    layout = "per-stage" if apart else "auto"
    return Pipeline.load(str(directory), plugins=plugins, device="cpu", layout=layout)
