"""The runtime end to end, with real processes and a pipeline without a model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import (
    ConfigError,
    NotReadyError,
    RequestError,
    StageDiedError,
    StageError,
)
from omni_core.pipeline import Network, Pipeline
from omni_core.testing import echo
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    MediaPart,
    Message,
    Modality,
    Request,
    RequestParams,
    TextDelta,
    TextPart,
    VoiceSample,
)

BOTH: tuple[Modality, ...] = ("text", "audio")


def ask(
    text: str, modalities: tuple[Modality, ...] = ("text",), name: str | None = None
) -> Request:
    message = Message(role="user", content=(TextPart(text=text),))
    params = RequestParams(modalities=modalities)
    return Request(messages=(message,), params=params, request_id=name)


async def collect(pipeline: Pipeline, request: Request) -> list[Event]:
    return [event async for event in pipeline.generate(request)]


def text_of(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def audio_of(events: list[Event]) -> np.ndarray:
    return np.concatenate([e.samples for e in events if isinstance(e, AudioDelta)])


def load(path: Path, **options: Any) -> Pipeline:
    return Pipeline.load(
        echo.write_checkpoint(path), plugins=echo.plugins(), device="cpu", **options
    )


@pytest.fixture(params=["auto", "per-stage"])
async def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pipeline]:
    async with load(tmp_path, layout=request.param) as running:
        yield running


async def held(pipeline: Pipeline) -> dict[str, float]:
    return {name: stats["held"] for name, stats in (await pipeline.stats()).items()}


async def until_released(pipeline: Pipeline, within_s: float = 1.0) -> None:
    """Every loop says so itself: the books of its stage forget a request when it is aborted."""
    deadline = time.monotonic() + within_s
    while pipeline.occupancy().aborting or any((await held(pipeline)).values()):
        assert time.monotonic() < deadline, await pipeline.stats()
        await asyncio.sleep(0.01)


async def test_text_and_audio_come_back(pipeline: Pipeline) -> None:
    events = await collect(pipeline, ask("one two three", BOTH))
    assert text_of(events) == "one two three "
    expected = np.repeat(np.arange(3) / 1000, echo.SAMPLES_PER_WORD).astype(np.float32)
    np.testing.assert_array_equal(audio_of(events), expected)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.text_tokens == 3
    assert [span.stage for span in finished.timeline] == ["intake", "writer", "voice"]
    assert all(0 <= span.start_s <= span.end_s for span in finished.timeline)


async def test_a_text_request_never_visits_the_voice(pipeline: Pipeline) -> None:
    before = (await pipeline.stats())["voice"]["requests"]
    events = await collect(pipeline, ask("one two"))
    assert not [e for e in events if isinstance(e, AudioDelta)]
    assert (await pipeline.stats())["voice"]["requests"] == before
    assert (await pipeline.stats())["writer"]["requests"] > before


async def test_large_tensors_cross_and_leave_nothing_in_shared_memory(pipeline: Pipeline) -> None:
    events = await collect(pipeline, ask("big words"))
    assert text_of(events) == "big words "
    await collect(pipeline, ask("more"))  # a loop keeps the last message until the next comes
    relays = await pipeline.relay_stats()
    lent = echo.BIG_BYTES if "intake" in relays else 0  # else its reader is in its own process
    assert sum(stats["bytes_lent"] for stats in relays.values()) == lent
    assert sum(stats["bytes_viewed"] for stats in relays.values()) == lent
    assert not any(stats["slots_used"] for stats in relays.values())


def test_how_tensors_will_travel_is_known_before_the_start(tmp_path: Path) -> None:
    far = Network(listen="tcp://127.0.0.1:7000", secret_file=tmp_path / "key", guests=("voice",))
    found = [
        {(edge.source, edge.target): edge.transports for edge in pipeline.edges}
        for pipeline in (
            load(tmp_path),
            load(tmp_path, layout="per-stage"),
            load(tmp_path, layout="per-stage", network=far),
        )
    ]
    assert [ways["intake", "writer"] for ways in found] == [("local",), ("shm",), ("shm",)]
    assert [ways["voice", "coordinator"] for ways in found] == [("shm",), ("shm",), ("tcp",)]


async def test_many_requests_at_once_keep_their_own_words(pipeline: Pipeline) -> None:
    texts = [" ".join(f"r{i}w{j}" for j in range(i + 1)) for i in range(20)]
    replies = await asyncio.gather(*(collect(pipeline, ask(t, BOTH)) for t in texts))
    assert [text_of(events).strip() for events in replies] == texts
    assert [audio_of(e).size for e in replies] == [240 * (i + 1) for i in range(20)]


@pytest.mark.parametrize("stage", ["intake", "writer"])
async def test_one_bad_request_fails_alone(pipeline: Pipeline, stage: str) -> None:
    good = asyncio.create_task(collect(pipeline, ask("fine", BOTH)))
    with pytest.raises(RequestError, match="asked to fail") as caught:
        await collect(pipeline, ask(f"ok fail:{stage}", BOTH))
    assert caught.value.status == 400
    assert text_of(await good) == "fine "
    await until_released(pipeline)


async def test_closing_early_releases_every_stage_and_the_id(pipeline: Pipeline) -> None:
    stream = pipeline.generate(ask("a hang b", BOTH, name="same-id"))
    await anext(stream)
    assert (await held(pipeline))["writer"] == 1
    await stream.aclose()
    await until_released(pipeline)
    assert (await pipeline.stats())["writer"]["running"] == 0
    assert text_of(await collect(pipeline, ask("again", BOTH, name="same-id"))) == "again "


@pytest.mark.parametrize("word", ["die:writer", "crash:writer"])
async def test_a_dead_process_is_noticed_at_once(tmp_path: Path, word: str) -> None:
    async with load(tmp_path, layout="per-stage") as pipeline:
        hanging = asyncio.create_task(collect(pipeline, ask("hang", BOTH)))
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(StageDiedError) as caught:
            await collect(pipeline, ask(word))
        assert time.monotonic() - started < 2
        assert (caught.value.status, caught.value.retryable) == (503, True)
        with pytest.raises(StageDiedError):
            await hanging
        health = pipeline.health()
        assert health.status == "degraded"
        assert health.stages["writer"].state == "dead"
        assert health.stages["voice"].state == "ready"
        with pytest.raises(NotReadyError, match="writer"):
            await collect(pipeline, ask("hello"))


async def test_stages_leave_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from omni_core.pipeline import Pipeline\n"
        "from omni_core.testing import echo\n"
        "async def main():\n"
        "    path = echo.write_checkpoint(Path(sys.argv[1]))\n"
        "    async with Pipeline.load(path, plugins=echo.plugins(), device='cpu') as p:\n"
        "        pids = [s.pid for s in p.health().stages.values()]\n"
        "        print(p._runtime.run_dir, *pids, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        os.sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    run_dir, *printed = (await parent.stdout.readline()).decode().split()
    pids = {int(pid) for pid in printed}
    assert len(pids) == 2
    assert Path(run_dir).is_dir()
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert not Path(run_dir).exists()


async def test_shutdown_fails_requests_in_flight(tmp_path: Path) -> None:
    async with load(tmp_path) as pipeline:
        stream = pipeline.generate(ask("hang"))
        await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
    with pytest.raises(NotReadyError, match="shutting down"):
        await waiting


async def test_start_up_failure_carries_the_output_of_the_process(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"'voice' ended during start-up(.|\n)*frames is 0"):
        async with load(tmp_path, overrides={"voice.frames": "0"}):
            pass


def test_misspelt_settings_are_refused_with_the_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'frames'") as caught:
        load(tmp_path, overrides={"voice.frame": "3", "voices.max_batch": "3"})
    assert "no stage 'voices'; did you mean 'voice'" in caught.value.message


async def test_a_pipeline_that_answers_only_refuses_all_else(pipeline: Pipeline) -> None:
    spoken = Request(read_aloud="one two", params=RequestParams(modalities=("audio",)))
    sample = VoiceSample(audio=MediaPart(kind="audio", data=b"RIFF"))
    cloned = Request(voice_sample=sample, params=RequestParams(modalities=("audio",)))
    raw = Request(prompt="one two")
    for request, name in ((spoken, "read_aloud"), (raw, "prompt"), (cloned, "voice_sample")):
        with pytest.raises(RequestError, match=r"cannot (read a text|complete|clone)") as refused:
            await collect(pipeline, request)
        assert refused.value.param == name
    assert text_of(await collect(pipeline, ask("one"))) == "one "
