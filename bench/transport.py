"""The same speech request over three kinds of edges: within a process, shared memory, and TCP.

Three pipelines of the same stages live side by side and take turns: all stages in one process, a
process for each, and for each a guest that is reached over the loopback interface. The request
shows a picture, so that tensors go with it which are too large to travel within a message.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from checkpoint import build_endless
from omni_core.pipeline import Network, Pipeline
from omni_core.types import (
    AudioDelta,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from omni_qwen3.pipeline import SPEECH_COLOCATED
from pictures import noise_png
from results import Case, Report
from servers import free_port, guest

STAGES: Final = tuple(stage.name for stage in SPEECH_COLOCATED)
LOCAL: Final = "one process"
SHARED: Final = "shared memory"
TCP: Final = "TCP"
PIXELS: Final = 448
RELEASE_S: Final = 30.0
"""A stage that has not let go after this long never will."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--compile", choices=("off", "background", "wait"), default="off")
    parser.add_argument("--rounds", type=int, default=12, help="medians are of so many (12)")
    parser.add_argument("--tokens", type=int, default=48, help="text tokens of a reply (48)")
    parser.add_argument("--frames", type=int, default=100, help="audio frames of a reply (100)")


def measure(options: argparse.Namespace) -> Report:
    """A reply and an abort of each pipeline in turn, round by round."""
    with tempfile.TemporaryDirectory() as workshop:
        return asyncio.run(_measure(options, Path(workshop)))


async def _measure(options: argparse.Namespace, workshop: Path) -> Report:
    edges = Edges(build_endless(workshop / "endless"), options.compile, workshop / "secret")
    random = np.random.default_rng(0)
    async with AsyncExitStack() as opened:
        callers = {
            name: await opened.enter_async_context(edges.caller(name))
            for name in (LOCAL, SHARED, TCP)
        }
        found: dict[str, list[Times]] = {name: [] for name in callers}
        order = list(callers)
        for number in range(options.rounds + 1):  # the first one warms up
            heard, dropped = (_request(options, noise_png(random, PIXELS)) for _ in range(2))
            for name in order:
                times = await callers[name].times(heard, dropped)
                if number:
                    found[name].append(times)
            order.append(order.pop(0))  # nobody is always the first
        carried = [f"{name}: {await caller.carried()}" for name, caller in callers.items()]
    notes = "\n".join(["Bytes of tensors that left a process, by the way they took:", *carried])
    return Report(cases=_cases(found), notes=notes)


@dataclass(frozen=True, slots=True)
class Edges:
    """Makes pipelines that differ in what lies between their stages."""

    checkpoint: str
    compile: str
    secret_file: Path

    @asynccontextmanager
    async def caller(self, name: str) -> AsyncIterator[Caller]:
        """A running pipeline with these edges, and who asks it."""
        with ExitStack() as guests:
            pipeline = self._load(name, guests)
            caller = Caller(pipeline)
            async with pipeline:
                yield caller

    def _load(self, name: str, guests: ExitStack) -> Pipeline:
        apart = name != LOCAL
        return Pipeline.load(
            self.checkpoint,
            device="cpu",
            compile=self.compile,
            layout="per-stage" if apart else "auto",
            overrides={} if apart else {f"{stage}.process": "all" for stage in STAGES},
            network=self._network(guests) if name == TCP else None,
        )

    def _network(self, guests: ExitStack) -> Network:
        """Where the guests dial in, which are started here."""
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text("what all processes of this bench know")
        network = Network(
            listen=f"tcp://127.0.0.1:{free_port()}", secret_file=self.secret_file, guests=STAGES
        )
        for stage in STAGES:
            guests.enter_context(guest(stage, network.listen, self.secret_file))
        return network


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of one reply and of one that was not waited for, in seconds."""

    first_text: float
    first_audio: float
    last_audio: float
    release: float
    """From the moment the client turns away until no stage holds anything of the request."""


MOMENTS: Final[Mapping[str, Callable[[Times], float]]] = {
    "first text": lambda times: times.first_text,
    "first audio": lambda times: times.first_audio,
    "waveform done": lambda times: times.last_audio,
    "released after an abort": lambda times: times.release,
}


class Caller:
    """Asks a pipeline, and is its `Observer`."""

    def __init__(self, pipeline: Pipeline) -> None:
        pipeline.observer = self
        self._pipeline = pipeline
        self._all_released = asyncio.Event()

    async def times(self, heard: Request, dropped: Request) -> Times:
        """Hear one reply to its end, and another until it begins to speak."""
        first_text, first_audio, last_audio = await self._hear(heard)
        return Times(
            first_text=first_text,
            first_audio=first_audio,
            last_audio=last_audio,
            release=await self._drop(dropped),
        )

    async def carried(self) -> str:
        """Tensors that all processes have sent, for a person."""
        relays = (await self._pipeline.relay_stats()).values()
        ways = {"bytes_inline": "in messages", "bytes_lent": "shared memory", "bytes_tcp": "TCP"}
        return ", ".join(
            f"{sum(relay.get(key, 0.0) for relay in relays) / 1e6:.1f} MB {way}"
            for key, way in ways.items()
        )

    async def _hear(self, request: Request) -> tuple[float, float, float]:
        """Until the first text, the first audio and the last."""
        texts, audios, began = [], [], time.perf_counter()
        async for event in self._pipeline.generate(request):
            match event:
                case TextDelta():
                    texts.append(time.perf_counter() - began)
                case AudioDelta():
                    audios.append(time.perf_counter() - began)
        return texts[0], audios[0], audios[-1]

    async def _drop(self, request: Request) -> float:
        self._all_released.clear()
        async with aclosing(self._pipeline.generate(request)) as events:
            async for event in events:
                if isinstance(event, AudioDelta):
                    break
            left = time.perf_counter()
        await asyncio.wait_for(self._all_released.wait(), RELEASE_S)
        return time.perf_counter() - left

    def refused(self, reason: str) -> None:
        """See `Observer.refused`."""

    def aborted(self, reason: str) -> None:
        """See `Observer.aborted`."""

    def released(self, stage: str, after_s: float) -> None:
        """See `Observer.released`."""
        if not self._pipeline.occupancy().aborting:
            self._all_released.set()


def _request(options: argparse.Namespace, picture: bytes) -> Request:
    """For a greedy spoken reply of fixed length about a picture."""
    content = (MediaPart(kind="image", data=picture), TextPart(text="What did the fox see?"))
    talker = SamplingParams(temperature=0.0, max_tokens=options.frames + 1)
    return Request(
        messages=(Message(role="user", content=content),),
        params=RequestParams(
            modalities=("text", "audio"),
            sampling=SamplingParams(temperature=0.0, max_tokens=options.tokens),
            stage_params={"talker_ar": talker},
        ),
    )


def _cases(found: dict[str, list[Times]]) -> tuple[Case, ...]:
    """The edges between processes beside those within one."""
    return tuple(
        Case(
            case=f"{what}, {name}",
            unit="ms",
            ours=_median_ms(found[name], moment),
            other=_median_ms(found[LOCAL], moment),
            other_name=LOCAL,
            better="less",
        )
        for what, moment in MOMENTS.items()
        for name in (SHARED, TCP)
    )


def _median_ms(found: Sequence[Times], moment: Callable[[Times], float]) -> float:
    return median(map(moment, found)) * 1e3
