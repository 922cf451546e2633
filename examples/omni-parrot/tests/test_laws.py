"""The laws that Omni holds every plugin to. By itself, a stage has no real model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omni_core.encoder.prompts import made_prompt
from omni_core.media import MediaLimits
from omni_core.media.clip import float_wav
from omni_core.scheduler.base import Chunk, ChunksDone, InboxItem, Scheduler, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import ModelInfo
from omni_core.testing.suites import (
    PipelineSuite,
    PluginSuite,
    PreprocessorSuite,
    Script,
    StageSuite,
    VoiceSuite,
)
from omni_core.types import FloatArray, MediaPart, Message, Payload, RequestParams, TextPart
from omni_parrot.asr import Listener
from omni_parrot.checkpoint import HEARD_HZ, Parrot, describe, write
from omni_parrot.decode import Decode
from omni_parrot.payloads import Said, Turn
from omni_parrot.segmenter import Segmenter
from omni_parrot.turn import Turns
from omni_parrot.voice import Speaker

PARAMS = RequestParams(modalities=("text", "audio"))
SOUND = np.linspace(-0.5, 0.5, HEARD_HZ, dtype=np.float32)


class TestPlugin(PluginSuite):
    module = "omni_parrot"


class TestPipeline(PipelineSuite):
    """With the real models."""

    module = "omni_parrot"

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        directory = tmp_path_factory.mktemp("models") / "parrot"
        write(str(directory), Parrot())
        return str(directory)


class TestVoices(VoiceSuite):
    @pytest.fixture
    def info(self, tmp_path: Path) -> ModelInfo:
        write(str(tmp_path), Parrot())
        return describe(str(tmp_path))


def script(payload: Payload, source: str = "", chunks: Sequence[object] = ()) -> Script:
    """A request with a stream, if chunks of one are given."""

    def items(request_id: str) -> Sequence[InboxItem]:
        work = Work(request_id, PARAMS, payload)
        stream = [Chunk(request_id, source, chunk) for chunk in chunks]
        return [work, *stream, ChunksDone(request_id, source)] if chunks else [work]

    return items


def asks(*parts: TextPart | MediaPart) -> Script:
    """A request to repeat them."""
    messages = (Message(role="user", content=parts),)
    return script({"messages": msgspec.msgpack.encode(messages)})


class TestPreprocessing(PreprocessorSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        turns = Turns(MediaLimits())
        return lambda: SimpleScheduler(lambda works: [made_prompt(turns, work) for work in works])

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        clip = MediaPart(kind="audio", data=float_wav(SOUND, HEARD_HZ))
        return [asks(TextPart(text="Say"), clip), asks(TextPart(text="Hello"))]

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        return [
            asks(TextPart(text=" ")),
            asks(MediaPart(kind="audio", data=b"no sound")),
            asks(TextPart(text="word " * 140_000)),
        ]


def hear(sound: FloatArray, turn: Turn) -> Iterator[str]:
    """A recogniser that hears how long a sound is."""
    yield f" {sound.size} samples"
    yield " and no more."


def turn(*pieces: object) -> Script:
    return script({"pieces": [*pieces], "language": None, "prompt": "", "translate": False})


class TestAsr(StageSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        return lambda: Listener(hear)

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        return [turn({"text": "Say"}, {"sound": SOUND}), turn({"sound": SOUND[:9]})]


def said(*texts: str) -> Script:
    chunks = [*(Said(text=text, finish=None) for text in texts), Said(text="", finish="stop")]
    return script({}, "asr", chunks)


class TestDecode(StageSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        return Decode

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        return [said("One. Two,", " and three."), said("")]


class TestSegmenter(TestDecode):
    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        return Segmenter


def speak(text: str, voice: str, seed: int) -> FloatArray:
    """A voice that is noise of its seed."""
    return np.random.default_rng(seed).uniform(-1, 1, 100 * len(text)).astype(np.float32)


class TestVoice(StageSuite):
    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        return lambda: Speaker(speak, "heart")

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        return [script({}, "segmenter", ["One.", "Two,"]), script({}, "segmenter", ["Other."])]
