"""`PipelineSuite`: a pipeline is sound on paper, and answers, alone and in company, from its own
tiny checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import numpy as np
import pytest

from omni_core.config import Asked, ConfigFile, resolve
from omni_core.config.explain import document, to_yaml
from omni_core.graph import needed
from omni_core.pipeline import model_info
from omni_core.plugins import Plugins
from omni_core.specs import ModelInfo, PipelineConfig, Ref
from omni_core.testing.serving import Reply, Served, serving
from omni_core.testing.suites.base import Suite, missing
from omni_core.types import AudioDelta, Message, Request, RequestParams, SamplingParams, TextPart
from omni_core.validate import problems

TOLERANCE: Final = 2e-4


class PipelineSuite(Suite):
    """Give `module`, as for `PluginSuite`; `pipeline` if it brings several; `checkpoint` if they
    build none; and `asked` if "Hello there" is not what it answers."""

    module: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def registry(cls) -> Plugins:
        """The plugin alone."""
        plugins = Plugins()
        plugins.register(importlib.import_module(cls.module), "it")
        return plugins

    @pytest.fixture(scope="class")
    @classmethod
    def pipeline(cls, registry: Plugins) -> PipelineConfig:
        """The only one."""
        [pipeline] = registry.pipelines().values()
        return pipeline

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, pipeline: PipelineConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
        """Directory of a small checkpoint."""
        if pipeline.build_tiny is None:
            raise missing(cls, "checkpoint")
        directory: Path = tmp_path_factory.mktemp("tiny")
        build = pipeline.build_tiny
        (build.resolve() if isinstance(build, Ref) else build)(str(directory), 0)
        return str(directory)

    @pytest.fixture(scope="class")
    @classmethod
    def info(cls, pipeline: PipelineConfig, checkpoint: str) -> ModelInfo:
        """What the pipeline says of the checkpoint."""
        return model_info(pipeline, checkpoint)

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, checkpoint: str, registry: Plugins) -> Iterator[Served]:
        """The checkpoint's pipeline, running."""
        with serving(checkpoint, registry) as served:
            yield served

    @pytest.fixture(scope="class")
    @classmethod
    def asked(cls, served: Served) -> Request:
        """For everything it can answer with; greedy, seeded and short."""
        message = Message(role="user", content=(TextPart(text="Hello there"),))
        sampling = SamplingParams(temperature=0.0, max_tokens=8, seed=0)
        params = RequestParams(modalities=served.pipeline.modalities, sampling=sampling)
        return Request(messages=(message,), params=params)

    def test_the_graph_of_every_variant_is_sound(self, pipeline: PipelineConfig) -> None:
        """And can answer with what it promises."""
        for name, stages in pipeline.variants.items():
            found = problems(stages, pipeline.entry, produces=pipeline.produces.get(name, ()))
            assert found == [], name

    def test_what_it_says_of_variants_and_stages_names_those_there_are(
        self, pipeline: PipelineConfig
    ) -> None:
        """Of all its mappings."""
        variants = set(pipeline.variants)
        assert pipeline.default_variant in variants
        assert set(pipeline.produces) <= variants
        assert set(pipeline.build_tiny_for) <= variants
        names = {stage.name for stages in pipeline.variants.values() for stage in stages}
        assert set(pipeline.cpu_processes) <= names

    def test_every_stage_serves_some_modality(self, pipeline: PipelineConfig) -> None:
        """None is there that no request ever visits."""
        for name, stages in pipeline.variants.items():
            emitted = [stage.terminal for stage in stages if stage.terminal is not None]
            assert needed(stages, emitted) == {stage.name for stage in stages}, name

    def test_its_checkpoint_is_recognised(
        self, registry: Plugins, pipeline: PipelineConfig, checkpoint: str, info: ModelInfo
    ) -> None:
        """And described: by small files alone."""
        assert registry.pipeline_at(checkpoint) == pipeline
        assert info.context_length > 0

    def test_a_configuration_can_be_written_down_and_read_again(
        self, pipeline: PipelineConfig, info: ModelInfo, tmp_path: Path
    ) -> None:
        """With the same stages."""
        first = resolve(pipeline, Asked(), cards=0, here=False, info=info)
        file = tmp_path / "omni.yaml"
        file.write_text(to_yaml(document(first)))
        again = resolve(pipeline, Asked(file=ConfigFile.read(file)), cards=0, here=False, info=info)
        assert again.stages == first.stages

    def test_a_request_is_answered_in_every_modality(
        self, served: Served, asked: Request, info: ModelInfo
    ) -> None:
        """And ends with the usage, and why."""
        [reply] = served.ask(asked)
        finished, modalities = reply.finished, served.pipeline.modalities
        assert finished.finish_reason in ("stop", "length", "tool_calls")
        assert finished.usage.prompt_tokens > 0
        if "text" in modalities:
            assert reply.text
        if "audio" in modalities:
            assert reply.samples.size
            assert np.isfinite(reply.samples).all()
            sounds = [event for event in reply.events if isinstance(event, AudioDelta)]
            assert {sound.sample_rate for sound in sounds} == {info.sample_rate}
            assert {sound.samples.dtype for sound in sounds} == {np.dtype(np.float32)}
        visited = {span.stage for span in finished.timeline}
        assert visited <= set(served.pipeline.stages)

    def test_requests_together_are_answered_as_each_alone(
        self, served: Served, asked: Request
    ) -> None:
        """Three at once, of which one asks for text only, if it can."""
        [alone] = served.ask(asked)
        modality = served.pipeline.modalities[:1]
        params = msgspec.structs.replace(asked.params, modalities=modality)
        other = msgspec.structs.replace(asked, params=params)
        first, _, last = served.ask(asked, other, asked)
        for reply in (first, last):
            _same(reply, alone)

    def test_who_leaves_frees_everything(self, served: Served, asked: Request) -> None:
        """In every stage, whenever that is; and the next request is answered as ever."""
        [before] = served.ask(asked)
        assert served.leave(asked)
        served.wait_until_idle()
        [after] = served.ask(asked)
        _same(after, before)
        served.wait_until_idle()


def _same(found: Reply, expected: Reply) -> None:
    assert found.text == expected.text
    assert found.samples.shape == expected.samples.shape
    np.testing.assert_allclose(found.samples, expected.samples, rtol=0, atol=TOLERANCE)
