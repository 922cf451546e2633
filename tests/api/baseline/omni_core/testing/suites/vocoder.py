from __future__ import annotations
from collections.abc import Sequence
from typing import Final
import numpy as np
import pytest
TOLERANCE: Final = 0.0002

class VocoderSuite(Suite):

    @pytest.fixture
    def vocoder(self) -> StreamingVocoder:
        ...

    @pytest.fixture
    def codes(self) -> Sequence[IntArray]:
        ...

    def test_the_codes_tell_something(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_samples_are_finite_float32_in_a_row(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    @pytest.mark.parametrize('size', [1, 3, 8])
    def test_any_chunking_gives_the_samples_of_the_whole(self, vocoder: StreamingVocoder, codes: Sequence[IntArray], size: int) -> None:
        ...

    def test_replies_in_one_push_sound_as_each_alone(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_a_reply_leaves_nothing_to_the_next(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_no_frames_are_no_sound_and_change_nothing(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_a_push_that_fails_changes_no_reply(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_as_many_replies_as_it_says_can_be_open(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...
