"""What operators do to a pipeline that runs: new weights, after which replies are those of a fresh
start on them, and recordings.

Marked `matrix`: a start of the pipeline takes ten seconds. See `nox -s faults`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from media import picture, png, sweep, wav
from omni_core.errors import ConflictError, NotReadyError, OmniError, RequestError
from omni_core.pipeline import Pipeline
from omni_core.types import (
    AudioDelta,
    Finished,
    FloatArray,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from omni_qwen3.tiny import build

pytestmark = pytest.mark.matrix

FILES = (
    MediaPart(kind="image", data=png(picture())),
    MediaPart(kind="audio", data=wav(sweep())),
)
QUESTION = "What is this? Say it in a sentence that is long enough for pages of a prefix."


@dataclass(frozen=True, slots=True)
class Reply:
    """What one greedy reply was."""

    ids: tuple[int, ...]
    samples: FloatArray
    cached: int

    def says_the_same_as(self, other: Reply) -> bool:
        """To the rounding that differs with the pieces in which speech is decoded."""
        return (
            self.ids == other.ids
            and self.samples.shape == other.samples.shape
            and np.allclose(self.samples, other.samples, atol=1e-4)
        )


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("weights") / "step-200")
    build(directory, seed=1)
    return directory


@asynccontextmanager
async def running(checkpoint: str) -> AsyncIterator[Pipeline]:
    async with Pipeline.load(
        checkpoint, device="cpu", dtype="float32", ar_engine="torch", compile="off"
    ) as pipeline:
        yield pipeline


def question(max_tokens: int = 12) -> Request:
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Request(
        messages=(Message(role="user", content=(*FILES, TextPart(text=QUESTION))),),
        params=RequestParams(
            modalities=("text", "audio"), sampling=greedy, stage_params={"talker_ar": greedy}
        ),
    )


async def ask(pipeline: Pipeline, max_tokens: int = 12) -> Reply:
    ids: tuple[int, ...] = ()
    samples: list[FloatArray] = []
    async for event in pipeline.generate(question(max_tokens)):
        match event:
            case TextDelta():
                ids += event.token_ids
            case AudioDelta():
                samples.append(event.samples)
            case Finished():
                return Reply(ids, np.concatenate(samples), event.usage.cached_tokens)
            case _:
                pass
    raise AssertionError("no end")


async def once_it_serves(pipeline: Pipeline) -> Reply:
    for _ in range(300):
        try:
            return await ask(pipeline)
        except OmniError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("no successor")


async def test_replies_are_those_of_a_fresh_start(tiny_checkpoint: str, other: str) -> None:
    async with running(other) as fresh:
        expected = await ask(fresh)
    async with running(tiny_checkpoint) as pipeline:
        old = await ask(pipeline)
        assert (await ask(pipeline)).cached > 0
        assert not old.says_the_same_as(expected)

        await pipeline.update_weights(other, revision="step-200")
        new = await ask(pipeline)
        assert new.says_the_same_as(expected)
        assert new.cached == 0
        manifest = pipeline.manifest()
        assert (manifest.checkpoint, manifest.revision) == ("step-200", "step-200")

        os.kill(pipeline.health().stages["talker_ar"].pid, signal.SIGKILL)
        assert (await once_it_serves(pipeline)).says_the_same_as(expected)

        await pipeline.update_weights(tiny_checkpoint)
        assert (await ask(pipeline)).says_the_same_as(old)


async def test_what_does_not_fit_touches_nothing(
    tiny_checkpoint: str, other: str, tmp_path: Path
) -> None:
    short = _copy(other, tmp_path / "short")
    last = max(short.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    text = _copy(other, tmp_path / "chat")
    (text / "chat_template.jinja").write_text("hello")
    async with running(tiny_checkpoint) as pipeline:
        old = await ask(pipeline)
        for path, told in ((short, last.name), (text, "chat_template.jinja")):
            with pytest.raises(RequestError, match=told) as refused:
                await pipeline.update_weights(str(path))
            assert refused.value.code == "invalid_checkpoint"
            kept = await ask(pipeline)
            assert kept.says_the_same_as(old)
            assert kept.cached > 0

        slow = asyncio.create_task(ask(pipeline, 400))
        await asyncio.sleep(0.3)
        with pytest.raises(ConflictError, match="1 requests") as refused:
            await pipeline.update_weights(other, wait_s=0)
        assert refused.value.code == "requests_running"
        assert not slow.done()

        update = asyncio.create_task(pipeline.update_weights(other, running="abort"))
        with pytest.raises(NotReadyError, match="loads new weights"):
            await slow
        waiting = asyncio.create_task(ask(pipeline))
        await update
        assert not (await waiting).says_the_same_as(old)


def _copy(checkpoint: str, place: Path) -> Path:
    return Path(shutil.copytree(checkpoint, place))


async def test_a_trace_has_the_loop_of_every_stage_with_torch(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    async with running(tiny_checkpoint) as pipeline:
        await pipeline.start_trace(str(tmp_path), seconds=60)
        with pytest.raises(ConflictError, match="under way"):
            await pipeline.start_trace(str(tmp_path))
        await ask(pipeline)
        found = await pipeline.stop_trace()
        for process, loop in (
            ("thinker", "stage-thinker"),
            ("talker", "stage-talker_ar"),
            ("code2wav", "stage-code2wav"),
        ):
            assert found[process].file is not None
            trace = json.loads(gzip.decompress(Path(found[process].file).read_bytes()))
            number = found[process].threads[loop]
            assert any(e["tid"] == number and "aten::" in e["name"] for e in trace["traceEvents"])
        encoders = ("preprocessing", "image_encoder", "audio_encoder", "mm_aggregate")
        assert found["frontend"].stages == encoders
