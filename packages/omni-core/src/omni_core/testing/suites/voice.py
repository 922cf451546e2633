"""`VoiceSuite`: what a model says of its voices can be served."""

from __future__ import annotations

import pytest

from omni_core.specs import ModelInfo
from omni_core.testing.suites.base import Suite, missing


class VoiceSuite(Suite):
    """Give `info`, what `PipelineConfig.describe` says of a checkpoint that speaks."""

    @pytest.fixture
    def info(self) -> ModelInfo:
        """Of the checkpoint."""
        raise missing(self, "info")

    def test_names_differ_by_more_than_case(self, info: ModelInfo) -> None:
        """Clients write them as they like."""
        names = [voice.casefold() for voice in info.voices]
        assert len(set(names)) == len(names)
        assert all(voice and voice == voice.strip() for voice in info.voices)

    def test_the_default_voice_is_one_of_them(self, info: ModelInfo) -> None:
        """And there is one, wherever there are voices to choose from."""
        if info.voices:
            assert info.default_voice in info.voices
        else:
            assert info.default_voice is None

    def test_there_is_a_sample_rate(self, info: ModelInfo) -> None:
        """In Hz."""
        assert info.sample_rate is not None
        assert 8_000 <= info.sample_rate <= 192_000

    def test_a_recording_can_be_within_the_limits(self, info: ModelInfo) -> None:
        """Of a model that clones voices."""
        if info.clones_voices is None:
            pytest.skip("the model clones no voices")
        limits = info.clones_voices
        assert limits.sample_rates
        assert 0 < limits.min_s < limits.max_s
        assert limits.max_characters > 0
