"""The stage that speaks: several utterances of several requests at once, each heard in its
place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from golden_files import assert_close

from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.errors import ConfigError
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Scheduler, Work
from omni_core.specs import StageConfig, StageContext, WeightLoader
from omni_core.steps import StepBank
from omni_core.steps.aoti import Libraries
from omni_core.steps.base import Spec
from omni_core.steps.compiled import Library
from omni_core.steps.maker import LibraryMaker
from omni_core.testing.fakes import RecordingOutbox, running
from omni_core.types import AudioDelta, FloatArray, RequestParams, SamplingParams
from omni_ming import tiny
from omni_ming.payloads import Utterance
from omni_ming.speech_text.front_end import utterances
from omni_ming.talker import runner as talker
from omni_ming.talker import stage
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.talker.runner import TalkerRunner
from omni_ming.talker.scheduler import SpeechScheduler
from omni_ming.talker.script import Director, Script, Utterances, WholeText
from omni_ming.talker.stage import build, build_stream
from omni_ming.vae.decoder import Decoder
from omni_ming.vae.stream import Push, Slot, StreamingVae
from omni_ming.voices import Voices

PATCH_S = 0.32
PATIENCE_S = 60.0
"""For speech of several requests, on a busy machine."""
TEXT = (
    "你好，世界。今天天气很好，我们去公园吧！"
    "The quick brown fox speaks. 公园里有很多人，大家都很开心。"
)


class Watched(StreamingVae):
    """Keeps which sounds ended, and their latents."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.latents: dict[int, int] = {}
        self.ended: list[int] = []
        self._slots: list[Slot] = []

    def open(self) -> Slot:
        self._slots.append(super().open())
        return self._slots[-1]

    def push(self, pushes: Sequence[Push]) -> list[FloatArray]:
        for push in pushes:
            number = self._slots.index(push.slot)
            assert number not in self.ended
            assert len(push.latents)
            self.latents[number] = self.latents.get(number, 0) + len(push.latents)
            self.ended += [number] * push.last
        return super().push(pushes)


@dataclass(frozen=True)
class Parts:
    """What schedulers are made of."""

    runner: TalkerRunner
    decoder: Decoder
    director: Director


@pytest.fixture(scope="module")
def parts(tiny_checkpoint: str) -> Parts:
    ctx = StageContext(
        stage=StageConfig(name="talker", factory=build),
        model_path=tiny_checkpoint,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )
    runner, vae = talker.load_runner(ctx), StreamingVae.load(ctx)
    prompts, voices = TalkerPrompts(tiny_checkpoint, 4), Voices(tiny_checkpoint)
    return Parts(runner, vae.decoder, Director("talker", prompts, voices, PATCH_S))


class Stage:
    """A scheduler and what it is made of."""

    def __init__(
        self,
        parts: Parts,
        script: Callable[[], Script] = Utterances,
        at_once: int = 4,
        **engine: int,
    ) -> None:
        self.vae = Watched(parts.decoder)
        self.engine = TorchEngine(parts.runner, TorchEngineConfig(**engine))
        self.scheduler = SpeechScheduler(
            self.engine,
            parts.director,
            self.vae,
            script=script,
            at_once=at_once,
            more_stats=parts.runner.flow.stats,
        )

    def speak(self, items: list[Any], *names: str) -> RecordingOutbox:
        """The calls of all these requests, which are to end."""
        with running(self.scheduler, items) as (_, outbox):
            for name in names:
                outbox.wait_for("complete", name, PATIENCE_S)
        self.check_empty()
        return outbox

    def check_empty(self) -> None:
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.kv_pages_used) == (0, 0, 0)
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


def alone(parts: Parts, name: str, seed: int) -> FloatArray:
    return audio(Stage(parts, at_once=1).speak(items(name, TEXT, params(seed)), name), name)


def test_eight_at_once_as_each_alone(parts: Parts) -> None:
    names = {f"r{seed}": seed for seed in range(8)}
    expected = {name: alone(parts, name, seed) for name, seed in names.items()}
    before = parts.runner.flow.stats()
    stage = Stage(parts, max_running=32)
    asked = [item for name, seed in names.items() for item in items(name, TEXT, params(seed))]
    made = stage.speak(asked, *names)
    for name, samples in expected.items():
        assert_close(audio(made, name), samples)
    after = stage.scheduler.stats()
    batches = after["flow_batches"] - before["flow_batches"]
    assert (after["flow_patches"] - before["flow_patches"]) / batches > 8
    assert after["utterances"] == 8 * len(utterances(TEXT))
    assert after["vae_chunks"] > 2 * after["vae_batches"]


def test_text_in_pieces_as_utterances(parts: Parts) -> None:
    """Spoken when it has ended, the text gives the audio that was streamed while it was written."""
    made = Stage(parts, WholeText).speak(whole("r", TEXT, params(5)), "r")
    assert_close(audio(made, "r"), alone(parts, "r", 5))


def test_utterances_are_heard_in_order(parts: Parts) -> None:
    """Short ones behind a long one are made first, and wait. None is longer than its text takes."""
    texts = ["公园里有很多人，大家都很开心。" * 2, "好。", "你好。"]
    chunks = [Chunk("r", "segmenter", Utterance(text=t, continues=True)) for t in texts]
    asked = [Work("r", params(1), {}), *chunks, ChunksDone("r", "segmenter")]
    stage = Stage(parts)
    stage.speak(asked, "r")
    assert stage.vae.ended == [0, 1, 2]
    assert 12 <= stage.vae.latents[0] // 4 <= math.ceil(len(texts[0]) * 5818 / 16_000 / PATCH_S)
    assert (stage.vae.latents[1], stage.vae.latents[2]) == (7 * 4, 7 * 4)  # of 2 s


def test_the_last_latents_are_marked_at_every_end(parts: Parts) -> None:
    """Where the stop rule, the length of the text or the caller's limit ends an utterance."""
    stage = Stage(parts)
    asked = [*items("rule", TEXT, params(1)), *items("limit", TEXT, params(2, max_tokens=3))]
    made = stage.speak(asked, "rule", "limit")
    count = len(utterances(TEXT))
    assert sorted(stage.vae.ended) == list(range(2 * count))
    ends = {name: made.wait_for("complete", name).value for name in ("rule", "limit")}
    assert ends == {"rule": "stop", "limit": "length"}
    assert sorted(stage.vae.latents.values())[:count] == [3 * 4] * count


def test_a_request_holds_no_more_rows_than_it_may(parts: Parts) -> None:
    stage = Stage(parts, at_once=2)
    sizes: list[int] = []
    step = stage.engine.step

    def counted() -> Any:
        stats = stage.engine.stats()
        sizes.append(stats.running + stats.waiting)
        return step()

    stage.engine.step = counted  # type: ignore[method-assign]
    stage.speak(items("r", TEXT, params(1)), "r")
    assert max(sizes) == 2


def test_utterances_made_and_not_heard_count(parts: Parts) -> None:
    """Behind a long one, short ones do not pile up."""
    stage = Stage(parts, at_once=2)
    ahead: list[int] = []
    step = stage.engine.step

    def counted() -> Any:
        begun = int(stage.scheduler.stats()["utterances"])
        ahead.append(begun - len(stage.vae.ended))
        return step()

    stage.engine.step = counted  # type: ignore[method-assign]
    asked: list[Any] = [Work("r", params(1), {})]
    texts = ["公园里有很多人，大家都很开心，今天天气很好。", *["好。"] * 6]
    asked += [Chunk("r", "segmenter", Utterance(text=t, continues=True)) for t in texts]
    stage.speak([*asked, ChunksDone("r", "segmenter")], "r")
    assert max(ahead) == 2


def test_the_loop_sleeps_while_the_engine_waits_for_company(parts: Parts) -> None:
    """Utterances that may not begin yet keep nobody awake."""
    stage = Stage(parts, at_once=1, coalesce_ms=300)
    turns: list[bool] = []
    runnable = stage.engine.runnable

    def counted() -> bool:
        turns.append(runnable())
        return turns[-1]

    stage.engine.runnable = counted  # type: ignore[method-assign]
    stage.speak(items("r", TEXT, params(1)), "r")
    assert turns.count(False) < 50


def test_a_new_request_does_not_wait_for_the_later_utterances_of_others(parts: Parts) -> None:
    """Where the engine is full, only those enter that are heard next."""
    stage = Stage(parts, at_once=8, max_running=2)
    texts = ["好。", "公园里有很多人。", "公园里有很多人。", "公园里有很多人。"]
    asked: list[Any] = [Work("a", params(1), {})]
    asked += [Chunk("a", "segmenter", Utterance(text=t, continues=True)) for t in texts]
    asked += [ChunksDone("a", "segmenter"), *items("b", "你好，世界。", params(2))]
    made = stage.speak(asked, "a", "b")
    assert [c.request_id for c in made.calls if c.method == "complete"] == ["b", "a"]


def test_nothing_is_made_ahead_while_somebody_waits_for_a_first_sound(parts: Parts) -> None:
    stage = Stage(parts)
    first_steps: list[int] = []
    step = stage.engine.step

    def counted() -> Any:
        if not stage.vae.latents:
            stats = stage.engine.stats()
            first_steps.append(stats.running + stats.waiting)
        return step()

    stage.engine.step = counted  # type: ignore[method-assign]
    names = [f"r{n}" for n in range(3)]
    stage.speak([item for name in names for item in items(name, TEXT, params(1))], *names)
    assert first_steps
    assert max(first_steps) == len(names)
    assert stage.scheduler.stats()["utterances"] == 3 * len(utterances(TEXT))


def test_an_abort_frees_everything(parts: Parts) -> None:
    stage = Stage(parts)
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


def test_a_bad_request_fails_alone(parts: Parts) -> None:
    stage = Stage(parts)
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


def test_nothing_to_say(parts: Parts) -> None:
    made = Stage(parts, WholeText).speak(whole("r", "。。。", params(1)), "r")
    assert [call.method for call in made.of("r")] == ["complete"]


def test_voices_sound_different(parts: Parts) -> None:
    given = {"DB30": params(1), "lingguang": msgspec.structs.replace(params(1), voice="lingguang")}
    asked = [item for name, one in given.items() for item in items(name, TEXT, one)]
    made = Stage(parts).speak(asked, *given)
    one, other = (audio(made, name) for name in given)
    assert one.shape != other.shape or not np.allclose(one, other)


class Instant(LibraryMaker):
    """Makes every library at once, of the program itself."""

    def make_now(self, spec: Spec, call: object, done: Callable[[Library], None]) -> None:
        done(lambda tensors: spec.program(*tensors))


def context(model_path: str, loaders: list[WeightLoader], **options: Any) -> StageContext:
    return StageContext(
        stage=StageConfig(name="talker", factory=build_stream, options=options),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        compile="wait",
        report=lambda message: None,
        loads=loaders.append,
    )


def heard(scheduler: Scheduler) -> FloatArray:
    with running(scheduler, items("r", TEXT, params(1))) as (_, outbox):
        outbox.wait_for("complete", "r")
    return audio(outbox, "r")


def test_new_weights_sound_as_if_they_had_been_there(
    tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the Talker, the VAE and the voices; steps are ready before the first request."""
    bank = StepBank(maker=Instant(Libraries(tmp_path / "libraries")), waits=True)
    banks = iter([bank, StepBank.eager()])
    monkeypatch.setattr(stage, "build_bank", lambda ctx: next(banks))
    loaders: list[WeightLoader] = []
    scheduler = build_stream(context(tiny_checkpoint, loaders, kv_budget_bytes=2**20))
    assert bank.stats()["steps_swapped"] == 3  # decode step, flow and aggregator
    assert bank.stats()["step_calls_eager"] == 0
    other = str(tmp_path / "other")
    tiny.build(other, seed=1)
    [loader] = loaders
    loader.check(other)
    loader.load(other)
    wanted = heard(build_stream(context(other, [])))
    assert_close(heard(scheduler), wanted)
    loader.load(tiny_checkpoint)
    again = heard(scheduler)
    assert again.shape != wanted.shape or not np.allclose(again, wanted)


def test_an_option_that_cannot_be_is_refused(tiny_checkpoint: str) -> None:
    with pytest.raises(ConfigError, match="utterances_at_once must be a whole number"):
        build(context(tiny_checkpoint, [], utterances_at_once=0))
