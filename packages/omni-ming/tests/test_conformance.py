"""The conformance kit, as any plugin's tests use it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from PIL import Image
from thinker_cases import context, request

from omni_core.engine.base import EngineRequest
from omni_core.scheduler.base import Scheduler, Work
from omni_core.specs import ModelInfo
from omni_core.testing.suites import (
    PipelineSuite,
    PluginSuite,
    PreprocessorSuite,
    RunnerSuite,
    Script,
    VoiceSuite,
)
from omni_core.types import MediaPart, Message, Part, RequestParams, SamplingParams, TextPart
from omni_ming import thinker
from omni_ming.defaults import describe
from omni_ming.pipeline import PREPROCESSING
from omni_ming.preprocess import stage as preprocess
from omni_ming.thinker import ThinkerRunner


def asks(*parts: Part) -> Script:
    message = Message(role="user", content=parts)
    payload = {"messages": msgspec.msgpack.encode((message,))}
    params = RequestParams(sampling=SamplingParams(max_tokens=8))
    return lambda name: [Work(name, params, payload)]


class TestPlugin(PluginSuite):
    module = "omni_ming"


class TestPipeline(PipelineSuite):
    module = "omni_ming"


class TestVoices(VoiceSuite):
    @pytest.fixture
    def info(self, tiny_checkpoint: str) -> ModelInfo:
        return describe(tiny_checkpoint)


class TestPreprocessing(PreprocessorSuite):
    @pytest.fixture
    def build(self, tiny_checkpoint: str) -> Callable[[], Scheduler]:
        stage = replace(PREPROCESSING, options={})
        return lambda: preprocess.build(replace(context(tiny_checkpoint), stage=stage))

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        picture = MediaPart(kind="image", data=file.getvalue())
        return [asks(TextPart(text="Hello")), asks(picture, TextPart(text="What is this?"))]

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        return [
            asks(MediaPart(kind="image", data=b"no picture")),
            asks(MediaPart(kind="audio", data=b"no sound")),
            asks(TextPart(text="word " * 100_000)),
        ]


class TestThinker(RunnerSuite):
    loaded: ClassVar[dict[str, ThinkerRunner]] = {}

    @pytest.fixture
    def runner(self, tiny_checkpoint: str) -> ThinkerRunner:
        if tiny_checkpoint not in self.loaded:
            self.loaded[tiny_checkpoint] = thinker.load_runner(context(tiny_checkpoint))
        return self.loaded[tiny_checkpoint]

    @pytest.fixture
    def requests(self, runner: ThinkerRunner) -> Sequence[EngineRequest]:
        return [
            request(case, runner.config, ignore_eos=True) for case in ("text", "image", "audio")
        ]
