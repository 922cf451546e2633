from __future__ import annotations
import pytest

class VoiceSuite(Suite):

    @pytest.fixture
    def info(self) -> ModelInfo:
        ...

    def test_names_differ_by_more_than_case(self, info: ModelInfo) -> None:
        ...

    def test_the_default_voice_is_one_of_them(self, info: ModelInfo) -> None:
        ...

    def test_there_is_a_sample_rate(self, info: ModelInfo) -> None:
        ...

    def test_a_recording_can_be_within_the_limits(self, info: ModelInfo) -> None:
        ...
