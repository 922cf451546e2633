"""The conformance kit, as any plugin's tests use it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from PIL import Image

from omni_core.engine.base import EngineRequest
from omni_core.scheduler.base import Chunk, ChunksDone, InboxItem, Scheduler, Work
from omni_core.specs import ModelInfo, Ref, StageConfig, StageContext
from omni_core.steps import StepBank
from omni_core.testing.fakes import RecordingOutbox
from omni_core.testing.suites import (
    PipelineSuite,
    PluginSuite,
    PreprocessorSuite,
    RunnerSuite,
    Script,
    StageSuite,
    VocoderSuite,
    VoiceSuite,
)
from omni_core.types import (
    IntArray,
    MediaPart,
    Message,
    Part,
    RequestParams,
    SamplingParams,
    TextPart,
)
from omni_qwen3 import thinker
from omni_qwen3.code2wav import stage as code2wav
from omni_qwen3.code2wav.model import Code2Wav, load_model
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder, WindowVocoder
from omni_qwen3.defaults import describe, thinker_defaults
from omni_qwen3.pipeline import PREPROCESSING
from omni_qwen3.preprocess import stage as preprocess

PROMPTS = ("Hello", "Name the five boroughs.", "What is heard in this long question, and by whom?")


def context(model_path: str, stage: StageConfig) -> StageContext:
    return StageContext(
        stage=stage,
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


def codes_of(*frames: int) -> list[IntArray]:
    rng = np.random.default_rng(0)
    return [rng.integers(64, size=(16, count)) for count in frames]


def asks(*parts: Part) -> Script:
    message = Message(role="user", content=parts)
    payload = {"messages": msgspec.msgpack.encode((message,))}
    params = RequestParams(sampling=SamplingParams(max_tokens=8))
    return lambda name: [Work(name, params, payload)]


class TestPlugin(PluginSuite):
    module = "omni_qwen3"


class TestPipeline(PipelineSuite):
    module = "omni_qwen3"


class TestVoices(VoiceSuite):
    @pytest.fixture
    def info(self, tiny_checkpoint: str) -> ModelInfo:
        return describe(tiny_checkpoint)


class TestPreprocessing(PreprocessorSuite):
    @pytest.fixture
    def build(self, tiny_checkpoint: str) -> Callable[[], Scheduler]:
        return lambda: preprocess.build(
            context(tiny_checkpoint, replace(PREPROCESSING, options={}))
        )

    @pytest.fixture
    def scripts(self, picture: bytes) -> Sequence[Script]:
        return [
            asks(TextPart(text="Hello")),
            asks(MediaPart(kind="image", data=picture), TextPart(text="What is this?")),
        ]

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        return [
            asks(MediaPart(kind="image", data=b"no picture")),
            asks(MediaPart(kind="audio", data=b"no sound")),
            asks(TextPart(text="word " * 100_000)),
        ]

    @pytest.fixture
    def picture(self) -> bytes:
        pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()


class TestThinker(RunnerSuite):
    loaded: ClassVar[dict[str, thinker.ThinkerRunner]] = {}

    @pytest.fixture
    def runner(self, tiny_checkpoint: str) -> thinker.ThinkerRunner:
        if tiny_checkpoint not in self.loaded:
            stage = StageConfig(name="thinker", factory=thinker.build)
            self.loaded[tiny_checkpoint] = thinker.load_runner(context(tiny_checkpoint, stage))
        return self.loaded[tiny_checkpoint]

    @pytest.fixture
    def requests(
        self, tiny_checkpoint: str, runner: thinker.ThinkerRunner
    ) -> Sequence[EngineRequest]:
        defaults = thinker_defaults(tiny_checkpoint)
        stage = thinker.ThinkerStage(runner, defaults, can_speak=False, max_running=4)
        made = [stage.admit(work, RecordingOutbox()) for work in self._works(tiny_checkpoint)]
        return [request for request in made if request is not None]

    def _works(self, checkpoint: str) -> list[Work]:
        build = preprocess.Preprocessor(checkpoint, preprocess.MediaLimits())
        works = []
        for number, text in enumerate(PROMPTS):
            sampling = SamplingParams(temperature=0.0, max_tokens=3 + number, ignore_eos=True)
            params = RequestParams(modalities=("text",), sampling=sampling)
            message = Message(role="user", content=(TextPart(text=text),))
            works.append(Work(f"r{number}", params, build.prompt((message,), params)))
        return works


class TestCode2Wav(VocoderSuite):
    @pytest.fixture
    def vocoder(self, code2wav_model: Code2Wav) -> Qwen3Vocoder:
        return Qwen3Vocoder(code2wav_model, StepBank.eager(), max_replies=4)

    @pytest.fixture
    def codes(self) -> Sequence[IntArray]:
        return codes_of(10, 33, 21)


class TestWindows(VocoderSuite):
    @pytest.fixture
    def vocoder(self, code2wav_model: Code2Wav) -> WindowVocoder:
        return WindowVocoder(code2wav_model)

    @pytest.fixture
    def codes(self) -> Sequence[IntArray]:
        return codes_of(10, 33, 21)


class TestCode2WavStage(StageSuite):
    @pytest.fixture
    def build(self, tiny_checkpoint: str) -> Callable[[], Scheduler]:
        stage = StageConfig(name="code2wav", factory=Ref("omni_qwen3.code2wav.stage:build"))
        return lambda: code2wav.build(context(tiny_checkpoint, stage))

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        return [speaks(codes) for codes in codes_of(12, 5)]


def speaks(codes: IntArray) -> Script:
    def items(name: str) -> list[InboxItem]:
        pieces = np.split(codes, [1, 4], axis=1)
        chunks = [Chunk(name, "talker_ar", piece) for piece in pieces]
        opened = Work(name, RequestParams(modalities=("audio",)), {})
        return [opened, *chunks, ChunksDone(name, "talker_ar")]

    return items


@pytest.fixture(scope="module")
def code2wav_model(tiny_checkpoint: str) -> Any:
    return load_model(tiny_checkpoint, device="cpu", dtype="float32", report=lambda message: None)
