"""A scripted pipeline and a live server around it: real sockets, no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from openai import AsyncOpenAI

from omni_core.coordinator.aborts import Silent
from omni_core.errors import ConflictError, OmniError
from omni_core.pipeline import (
    AdmissionLimits,
    Edge,
    Health,
    Manifest,
    Pipeline,
    StageHealth,
    StagePlace,
    Traced,
)
from omni_core.relay.transport import Transport
from omni_core.specs import ModelInfo, Transcription, TranscriptionTask
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    MediaPart,
    Message,
    Request,
    StageSpan,
    TextDelta,
    Usage,
)
from omni_server.access import OnAccess, look_away
from omni_server.app import create_app
from omni_server.http import bind, http_server
from omni_server.keys import KeyRing
from omni_server.settings import Settings

MODEL = "lab/parrot"
RATE = 22_050

Step = Event | Exception | asyncio.Event
Script = Callable[[Request], Sequence[Step]]

USAGE = Usage(
    prompt_tokens=11, prompt_audio_tokens=4, prompt_image_tokens=2, cached_tokens=3,
    text_tokens=5, audio_tokens=7,
)  # fmt: skip
TIMELINE = (
    StageSpan(stage="thinker", start_s=0.0, first_output_s=0.1, end_s=0.4),
    StageSpan(stage="voice", start_s=0.1, first_output_s=0.2, end_s=0.5),
)


def sound(start: int, n: int) -> AudioDelta:
    """`n` samples of a wave that differs everywhere, from sample `start` on."""
    samples = np.sin(np.arange(start, start + n, dtype=np.float32) * 0.05) * 0.8
    return AudioDelta(samples=samples.astype(np.float32), sample_rate=RATE)


def default_script(request: Request) -> list[Step]:
    """Three text deltas, and audio between them when it was asked for."""
    finished = Finished(finish_reason="stop", usage=USAGE, timeline=TIMELINE)
    text = [TextDelta(text=t, token_ids=(i,)) for i, t in enumerate(["Hé", "llo", " there"])]
    if "audio" not in request.params.modalities:
        return [*text, finished]
    finished = msgspec.structs.replace(finished, audio_finish_reason="stop")
    return [text[0], sound(0, 480), text[1], sound(480, 31), text[2], sound(511, 960), finished]


class FakePipeline(Pipeline):
    """Plays a script for every request and remembers what it was asked."""

    def __init__(self, script: Script = default_script) -> None:
        self.info = ModelInfo(
            context_length=2048,
            voices=("Ethan", "Chelsie"),
            default_voice="Ethan",
            sample_rate=RATE,
            input_modalities=("text", "image", "audio", "video"),
            reads_aloud=True,
            completes_prompts=True,
        )
        self.name, self.variant = "parrot", "speech"
        self.modalities = ("text", "audio")
        self.stages = ("thinker", "voice")
        self.edges = (Edge(source="thinker", target="voice", transports=(Transport.CUDA_IPC,)),)
        self.script = script
        self.requests: list[Request] = []
        self.cancelled: list[tuple[str, str]] = []
        self.observer = Silent()
        self._runtime = None
        self._limits = AdmissionLimits(max_in_flight=3)
        self.log_levels: list[str] = []
        self.model_path = "/nowhere"
        self.updates: list[tuple[str, Any]] = []
        self.update_fails: OmniError | None = None
        self.traces: list[tuple[Any, ...]] = []
        self.running = 0
        self.closed = asyncio.Event()
        self.stage_state: Any = "ready"

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        self.requests.append(request)
        self.running += 1
        self.closed.clear()
        try:
            for step in self.script(request):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    await asyncio.sleep(0)  # as a pipeline does that has told all it knows
                    yield [step]
        finally:
            self.running -= 1
            self.closed.set()

    def cancel(self, request_id: str, client: str = "") -> int:
        self.cancelled.append((request_id, client))
        return sum((r.request_id, r.client) == (request_id, client) for r in self.requests)

    def health(self) -> Health:
        ready = self.stage_state == "ready"
        voice = StageHealth(pid=11, state=self.stage_state, restarts=1)
        stages = {"thinker": StageHealth(pid=10, state="ready"), "voice": voice}
        return Health(status="ready" if ready else "degraded", stages=stages)

    def manifest(self) -> Manifest:
        place = StagePlace(
            process="thinker", devices=("cuda:1",), replicas=1, tp_size=1, ar_engine="torch"
        )
        return Manifest(
            pipeline=self.name, variant=self.variant, checkpoint="parrot", revision="a" * 40,
            dtype="float32", compile="off", stages={"thinker": place}, torch="2.13", cuda=None,
            sglang=None, cards=("Card",),
        )  # fmt: skip

    async def update_weights(self, model_path: str, **how: Any) -> None:
        if self.update_fails is not None:
            raise self.update_fails
        self.updates.append((model_path, how))

    async def start_trace(
        self, directory: str, *, seconds: float = 5.0, stages: Collection[str] = ()
    ) -> dict[str, Traced]:
        self.traces.append((directory, seconds, stages))
        silent = Traced(stages=("voice",), reason="no torch")
        return {"talker": Traced(stages=("thinker",), file="t.json.gz"), "voice": silent}

    async def stop_trace(self) -> dict[str, Traced]:
        if not self.traces:
            raise ConflictError("nothing was recorded; start first")
        found = Traced(stages=("thinker",), file="t.json.gz", threads={"stage-thinker": 7})
        return {"talker": found}

    def set_log_level(self, level: str) -> None:
        self.log_levels.append(level)

    async def failed(self) -> OmniError:
        await asyncio.Event().wait()
        raise AssertionError

    async def stats(self) -> dict[str, dict[str, float]]:
        return {"thinker": {"running": 1.0, "kv pages": 7.0}, "voice": {"running": 0.0}}

    async def relay_stats(self) -> dict[str, dict[str, float]]:
        return {"talker": {"bytes_lent": 5.0}}


@dataclass(kw_only=True)
class Live:
    """A server on a loopback port."""

    pipeline: FakePipeline
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    url: str

    async def chat(self, **body: Any) -> httpx.Response:
        """POST a chat body around one user message."""
        return await self.http.post("/v1/chat/completions", json={**hello(), **body})

    async def refused(self, status: int, **body: Any) -> dict[str, Any]:
        """POST a chat body that must be refused; returns its checked error object."""
        response = await self.chat(**body)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        return dict(error)


def hello(text: str = "Hi") -> dict[str, Any]:
    """A minimal chat body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]}


def shortcut(pipeline: FakePipeline, settings: Settings, on_access: OnAccess = look_away) -> Live:
    """The application without a socket, to be closed by `Live.http.aclose`."""
    transport = httpx.ASGITransport(
        create_app(pipeline, settings, on_access), raise_app_exceptions=False
    )
    http = httpx.AsyncClient(base_url="http://omni", transport=transport)
    openai = AsyncOpenAI(api_key="none", http_client=http, base_url="http://omni/v1", max_retries=0)
    return Live(pipeline=pipeline, http=http, openai=openai, url="http://omni")


@asynccontextmanager
async def serving(pipeline: FakePipeline, settings: Settings) -> AsyncIterator[Live]:
    """Serve a pipeline on a free loopback port."""
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = http_server(create_app(pipeline, settings), drain_timeout_s=1)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with (
            # No certificates on loopback, and loading them costs more than a test.
            httpx.AsyncClient(base_url=url, timeout=10, verify=False) as http,
            httpx.AsyncClient(timeout=10, verify=False) as below,
        ):
            client = AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=below
            )
            yield Live(pipeline=pipeline, http=http, openai=client, url=url)
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def pipeline() -> FakePipeline:
    """A pipeline that plays the default script."""
    return FakePipeline()


@pytest.fixture
async def live(pipeline: FakePipeline) -> AsyncIterator[Live]:
    """A live server around `pipeline`."""
    settings = Settings(served_model_name=MODEL, max_body_bytes=1024 * 1024)
    async with serving(pipeline, settings) as server:
        yield server


@pytest.fixture
async def local(pipeline: FakePipeline) -> AsyncIterator[Live]:
    """The application without a socket: for what happens in one request."""
    live = shortcut(pipeline, Settings(served_model_name=MODEL))
    async with live.http:
        yield live


@pytest.fixture
async def able(pipeline: FakePipeline) -> AsyncIterator[Live]:
    """The application around a pipeline that can do everything, asked by its operator."""
    pipeline.info = replace(
        pipeline.info,
        tools=True,
        logprobs=True,
        grammars=True,
        transcription=Transcription(messages=only_the_recording),
    )
    settings = Settings(served_model_name=MODEL, admin_keys=KeyRing.of(["admin"]))
    live = shortcut(pipeline, settings)
    live.http.headers["authorization"] = "Bearer admin"
    async with live.http:
        yield live


def only_the_recording(part: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """How a model is asked to write down speech, without a word."""
    return (Message(role="user", content=(part,)),)


def error_of(response: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The error object that must be the answer to a bad request."""
    assert response.status_code in statuses, f"{response.status_code}: {response.text[:200]}"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return dict(error)


async def unharmed(live: Live) -> None:
    """Nothing has reached the pipeline so far, and the next request is served."""
    assert not live.pipeline.requests
    assert not live.pipeline.log_levels
    assert (await live.chat()).status_code == 200


@pytest.fixture
def kit() -> type[Kit]:
    """The helpers of this file, for test modules that cannot import it."""
    return Kit


class Kit:
    """Names shared by the test modules."""

    MODEL = MODEL
    RATE = RATE
    USAGE = USAGE
    hello = staticmethod(hello)
    sound = staticmethod(sound)
    default_script = staticmethod(default_script)
    FakePipeline = FakePipeline
    serving = staticmethod(serving)
    shortcut = staticmethod(shortcut)
    error_of = staticmethod(error_of)
    unharmed = staticmethod(unharmed)
