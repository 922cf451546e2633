"""The stage that speaks: several utterances of several requests at once, each heard in its
place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from golden_files import assert_close

from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Work
from omni_core.specs import StageConfig, StageContext
from omni_core.testing.fakes import RecordingOutbox, running
from omni_core.types import AudioDelta, FloatArray, RequestParams, SamplingParams
from omni_ming.payloads import Utterance
from omni_ming.speech_text.front_end import utterances
from omni_ming.talker import runner as talker
from omni_ming.talker.prompt import TalkerPrompts, Voice
from omni_ming.talker.runner import TalkerRunner
from omni_ming.talker.scheduler import SpeechScheduler
from omni_ming.talker.script import Director, Script, Utterances, WholeText

PATCH_S = 0.32
TEXT = (
    "你好，世界。今天天气很好，我们去公园吧！"
    "The quick brown fox speaks. 公园里有很多人，大家都很开心。"
)


class Latents:
    """A `Vae` whose samples are the latents themselves, and that keeps its books."""

    sample_rate = 44_100

    def __init__(self) -> None:
        self.open_slots: set[int] = set()
        self.lasts: list[int] = []
        self._opened = 0

    def open(self) -> int:
        self._opened += 1
        self.open_slots.add(self._opened)
        return self._opened

    def push(self, rows: list[tuple[int, torch.Tensor, bool]]) -> list[FloatArray]:
        for slot, latents, last in rows:
            assert slot in self.open_slots
            assert slot not in self.lasts
            assert len(latents)
            self.lasts += [slot] * last
        return [latents.flatten().numpy() for _, latents, _ in rows]

    def close(self, slot: int) -> None:
        self.open_slots.remove(slot)


class Untrimmed:
    """A `Trim` that ends an utterance with a 9."""

    def push(self, samples: FloatArray) -> FloatArray:
        return samples

    def flush(self) -> FloatArray:
        return np.full(1, 9, np.float32)


@pytest.fixture(scope="module")
def runner(tiny_checkpoint: str) -> TalkerRunner:
    return talker.load_runner(
        StageContext(
            stage=StageConfig(name="talker", factory=talker.load_runner),
            model_path=tiny_checkpoint,
            device="cpu",
            dtype="float32",
            ar_engine="torch",
            report=lambda message: None,
        )
    )


@pytest.fixture(scope="module")
def director(tiny_checkpoint: str, runner: TalkerRunner) -> Director:
    prompts = TalkerPrompts(tiny_checkpoint)
    rng = np.random.default_rng(3)
    latents = rng.standard_normal((12, 64), np.float32)
    speaker = rng.standard_normal(192, np.float32)
    voices = {"DB30": Voice(speaker=speaker, text="感谢你的认可。", latents=latents)}
    return Director("talker", prompts, voices, "DB30", runner.config, PATCH_S)


class Stage:
    """A scheduler and what it is made of."""

    def __init__(
        self,
        runner: TalkerRunner,
        director: Director,
        script: Callable[[], Script] = Utterances,
        at_once: int = 4,
        **engine: int,
    ) -> None:
        self.vae = Latents()
        self.engine = TorchEngine(runner, TorchEngineConfig(**engine))
        self.flow = runner.flow
        self.scheduler = SpeechScheduler(
            self.engine,
            director,
            self.vae,
            script=script,
            trim=Untrimmed,
            at_once=at_once,
            more_stats=runner.flow.stats,
        )

    def speak(self, items: list[Any], *names: str) -> dict[str, RecordingOutbox]:
        """The calls for each request once all have ended."""
        with running(self.scheduler, items) as (_, outbox):
            for name in names:
                outbox.wait_for("complete", name)
        self.check_empty()
        return dict.fromkeys(names, outbox)

    def check_empty(self) -> None:
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.kv_pages_used) == (0, 0, 0)
        assert not self.vae.open_slots
        assert self.scheduler.stats()["running"] == 0


def params(seed: int, **mine: Any) -> RequestParams:
    stage_params = {"talker": SamplingParams(**mine)} if mine else {}
    return RequestParams(
        modalities=("audio",), sampling=SamplingParams(seed=seed), stage_params=stage_params
    )


def items(name: str, text: str, given: RequestParams) -> list[Any]:
    """A request whose utterances come one by one."""
    chunks = [Chunk(name, "segmenter", utterance) for utterance in utterances(text)]
    return [Work(name, given, {}), *chunks, ChunksDone(name, "segmenter")]


def whole(name: str, text: str, given: RequestParams) -> list[Any]:
    """A request whose text comes in pieces of 7 characters."""
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
    chunks = [Chunk(name, "thinker", {"text": piece}) for piece in pieces]
    return [Work(name, given, {}), *chunks, ChunksDone(name, "thinker")]


def audio(outbox: RecordingOutbox, name: str) -> FloatArray:
    deltas = [call.value for call in outbox.of(name) if call.method == "emit"]
    assert all(isinstance(delta, AudioDelta) and delta.sample_rate == 44_100 for delta in deltas)
    return np.concatenate([delta.samples for delta in deltas])


def alone(runner: TalkerRunner, director: Director, name: str, **given: Any) -> FloatArray:
    stage = Stage(runner, director, at_once=1)
    return audio(stage.speak(items(name, TEXT, params(**given)), name)[name], name)


def test_eight_at_once_as_each_alone(runner: TalkerRunner, director: Director) -> None:
    names = {f"r{seed}": seed for seed in range(8)}
    expected = {name: alone(runner, director, name, seed=seed) for name, seed in names.items()}
    before = runner.flow.stats()
    stage = Stage(runner, director, max_running=32)
    asked = [item for name, seed in names.items() for item in items(name, TEXT, params(seed))]
    made = stage.speak(asked, *names)
    for name, samples in expected.items():
        assert_close(audio(made[name], name), samples)
    after = stage.scheduler.stats()
    batches = after["flow_batches"] - before["flow_batches"]
    assert (after["flow_patches"] - before["flow_patches"]) / batches > 8
    assert after["utterances"] == 8 * len(utterances(TEXT))


def test_text_in_pieces_as_utterances(runner: TalkerRunner, director: Director) -> None:
    """Spoken when it has ended, the text gives the audio that was streamed while it was written."""
    streamed = alone(runner, director, "r", seed=5)
    stage = Stage(runner, director, WholeText)
    made = stage.speak(whole("r", TEXT, params(5)), "r")["r"]
    assert_close(audio(made, "r"), streamed)


def test_utterances_are_heard_in_order(runner: TalkerRunner, director: Director) -> None:
    """Short ones behind a long one are made first, and wait."""
    texts = ["公园里有很多人，大家都很开心。" * 2, "好。", "你好。"]
    chunks = [Chunk("r", "segmenter", Utterance(text=t, continues=True)) for t in texts]
    asked = [Work("r", params(1), {}), *chunks, ChunksDone("r", "segmenter")]
    made = Stage(runner, director).speak(asked, "r")["r"]
    samples = audio(made, "r")
    lengths = np.diff(np.flatnonzero(samples == 9), prepend=-1) - 1
    patch = 4 * 64
    longest = [max(2.0, len(t) * 5818 / 16_000) for t in texts]
    most = [math.ceil(seconds / PATCH_S) for seconds in longest]
    assert all(12 <= n // patch <= m or n // patch == m for n, m in zip(lengths, most, strict=True))
    assert (lengths[1], lengths[2]) == (7 * patch, 7 * patch)
    assert lengths[0] > 12 * patch


def test_the_last_latents_are_marked_at_every_end(runner: TalkerRunner, director: Director) -> None:
    """Where the stop rule, the guard or the caller's limit ends an utterance."""
    stage = Stage(runner, director)
    asked = [*items("rule", TEXT, params(1)), *items("limit", TEXT, params(2, max_tokens=3))]
    made = stage.speak(asked, "rule", "limit")
    assert sorted(stage.vae.lasts) == list(range(1, 2 * len(utterances(TEXT)) + 1))
    ends = {name: outbox.wait_for("complete", name).value for name, outbox in made.items()}
    assert ends == {"rule": "stop", "limit": "length"}
    assert len(audio(made["limit"], "limit")) == len(utterances(TEXT)) * (3 * 4 * 64 + 1)


def test_a_request_holds_no_more_rows_than_it_may(runner: TalkerRunner, director: Director) -> None:
    stage = Stage(runner, director, at_once=2)
    sizes: list[int] = []
    step = stage.engine.step

    def counted() -> Any:
        stats = stage.engine.stats()
        sizes.append(stats.running + stats.waiting)
        return step()

    stage.engine.step = counted  # type: ignore[method-assign]
    stage.speak(items("r", TEXT, params(1)), "r")
    assert max(sizes) == 2


def test_a_new_request_does_not_wait_for_the_later_utterances_of_others(
    runner: TalkerRunner, director: Director
) -> None:
    """Where the engine is full, only those enter that are heard next."""
    stage = Stage(runner, director, at_once=8, max_running=2)
    texts = ["好。", "公园里有很多人。", "公园里有很多人。", "公园里有很多人。"]
    asked: list[Any] = [Work("a", params(1), {})]
    asked += [Chunk("a", "segmenter", Utterance(text=t, continues=True)) for t in texts]
    asked += [ChunksDone("a", "segmenter"), *items("b", "你好，世界。", params(2))]
    outbox = stage.speak(asked, "a", "b")["a"]
    order = [c.request_id for c in outbox.calls if c.method == "complete"]
    assert order == ["b", "a"]


def test_an_abort_frees_everything(runner: TalkerRunner, director: Director) -> None:
    stage = Stage(runner, director)
    with running(stage.scheduler, items("r", TEXT, params(1))) as (inbox, outbox):
        outbox.wait_for("emit", "r")
        inbox.put(Abort("r"))
        outbox.wait_for("released", "r")
        stage.check_empty()
        for item in items("s", "你好，世界。", params(2)):
            inbox.put(item)
        outbox.wait_for("complete", "s")
    stage.check_empty()
    assert "complete" not in [call.method for call in outbox.of("r")]


def test_a_bad_request_fails_alone(runner: TalkerRunner, director: Director) -> None:
    stage = Stage(runner, director)
    voice = RequestParams(voice="nobody")
    too_long = [Utterance(text=text, continues=True) for text in ("你好，世界。", "=" * 4096)]
    asked = [
        *items("voice", TEXT, voice),
        Work("long", params(1), {}),
        *(Chunk("long", "segmenter", utterance) for utterance in too_long),
        *items("good", "你好，世界。", params(2)),
    ]
    with running(stage.scheduler, asked) as (_, outbox):
        assert "DB30" in outbox.wait_for("fail", "voice").value.message
        assert outbox.wait_for("fail", "long").value.code == "context_length_exceeded"
        outbox.wait_for("complete", "good")
    stage.check_empty()


def test_nothing_to_say(runner: TalkerRunner, director: Director) -> None:
    stage = Stage(runner, director, WholeText)
    made = stage.speak(whole("r", "。。。", params(1)), "r")["r"]
    assert [call.method for call in made.of("r")] == ["complete"]
