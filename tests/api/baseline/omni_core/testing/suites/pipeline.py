from __future__ import annotations
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final
import msgspec
import numpy as np
import pytest
TOLERANCE: Final = 0.0002

class PipelineSuite(Suite):
    module: ClassVar[str]

    @pytest.fixture(scope='class')
    @classmethod
    def registry(cls) -> Plugins:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def pipeline(cls, registry: Plugins) -> PipelineConfig:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def checkpoint(cls, pipeline: PipelineConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def info(cls, pipeline: PipelineConfig, checkpoint: str) -> ModelInfo:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def served(cls, checkpoint: str, registry: Plugins) -> Iterator[Served]:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def asked(cls, served: Served) -> Request:
        ...

    def test_the_graph_of_every_variant_is_sound(self, pipeline: PipelineConfig) -> None:
        ...

    def test_what_it_says_of_variants_and_stages_names_those_there_are(self, pipeline: PipelineConfig) -> None:
        ...

    def test_every_stage_serves_some_modality(self, pipeline: PipelineConfig) -> None:
        ...

    def test_its_checkpoint_is_recognised(self, registry: Plugins, pipeline: PipelineConfig, checkpoint: str, info: ModelInfo) -> None:
        ...

    def test_a_configuration_can_be_written_down_and_read_again(self, pipeline: PipelineConfig, info: ModelInfo, tmp_path: Path) -> None:
        ...

    def test_a_request_is_answered_in_every_modality(self, served: Served, asked: Request, info: ModelInfo) -> None:
        ...

    def test_requests_together_are_answered_as_each_alone(self, served: Served, asked: Request) -> None:
        ...

    def test_who_leaves_frees_everything(self, served: Served, asked: Request) -> None:
        ...
