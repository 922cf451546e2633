"""`VocoderSuite`: however frames come, a reply sounds as if they had come at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest

from omni_core.scheduler.streaming import StreamingVocoder
from omni_core.testing.suites.base import Suite, missing
from omni_core.types import FloatArray, IntArray, RequestParams

TOLERANCE: Final = 2e-4
"""Of float32 samples in [-1, 1]: under the step of 13 bits, and what batching may change."""


class VocoderSuite(Suite):
    """Give `vocoder`, a `StreamingVocoder`, and `codes`, int64 (groups, frames): three replies of
    different lengths, of ten frames or more each, that differ from the first frame on."""

    @pytest.fixture
    def vocoder(self) -> StreamingVocoder:
        """Fresh, or with nothing open."""
        raise missing(self, "vocoder")

    @pytest.fixture
    def codes(self) -> Sequence[IntArray]:
        """Of three replies."""
        raise missing(self, "codes")

    def test_the_codes_tell_something(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """What the other laws compare is sound, and differs between the replies."""
        assert len(codes) >= 3
        assert all(part.dtype == np.int64 and part.shape[1] >= 10 for part in codes)
        assert len({part.shape[1] for part in codes}) > 1
        sounds = [_whole(vocoder, part) for part in codes]
        for sound in sounds:
            assert sound.size > 0
            assert float(sound.std()) > 10 * TOLERANCE, "silence shows nothing"
        least = min(sound.size for sound in sounds)
        assert float(np.abs(sounds[0][:least] - sounds[1][:least]).max()) > 10 * TOLERANCE

    def test_samples_are_finite_float32_in_a_row(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """At a rate that is a rate."""
        sound = _whole(vocoder, codes[0])
        assert sound.dtype == np.dtype(np.float32)
        assert sound.ndim == 1
        assert np.isfinite(sound).all()
        assert vocoder.sample_rate > 0

    @pytest.mark.parametrize("size", [1, 3, 8])
    def test_any_chunking_gives_the_samples_of_the_whole(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray], size: int
    ) -> None:
        """In equal pieces, and in ever larger ones."""
        expected = _whole(vocoder, codes[0])
        frames = codes[0].shape[1]
        equal = list(range(size, frames, size))
        growing = [n * (n + size) // 2 for n in range(1, frames) if n * (n + size) // 2 < frames]
        for cuts in (equal, growing):
            _close(_streamed(vocoder, codes[0], cuts), expected)

    def test_replies_in_one_push_sound_as_each_alone(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """They are at different places, and have pieces of different sizes."""
        together = min(len(codes), vocoder.max_replies or len(codes))
        alone = [_whole(vocoder, part) for part in codes[:together]]
        states = [vocoder.open(RequestParams(), {}) for _ in alone]
        heard: list[list[FloatArray]] = [[] for _ in alone]
        at = [0] * together
        for turn in range(sum(part.shape[1] for part in codes)):
            who = [n for n in range(together) if turn >= 2 * n and at[n] < codes[n].shape[1]]
            pieces = [codes[n][:, at[n] : at[n] + 1 + (turn + n) % 4] for n in who]
            made = vocoder.push([states[n] for n in who], pieces) if who else []
            for n, piece, sound in zip(who, pieces, made, strict=True):
                heard[n].append(sound)
                at[n] += piece.shape[1]
        for state, expected, parts in zip(states, alone, heard, strict=True):
            _close(np.concatenate([*parts, vocoder.flush(state)]), expected)
            vocoder.close(state)

    def test_a_reply_leaves_nothing_to_the_next(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """One that ended, and one that was given up half-way."""
        expected = _whole(vocoder, codes[0])
        abandoned = vocoder.open(RequestParams(), {})
        vocoder.push([abandoned], [codes[1][:, :5]])
        vocoder.close(abandoned)
        _close(_whole(vocoder, codes[0]), expected)

    def test_no_frames_are_no_sound_and_change_nothing(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """A reply may end before it begins."""
        expected = _whole(vocoder, codes[0])
        state = vocoder.open(RequestParams(), {})
        [nothing] = vocoder.push([state], [codes[0][:, :0]])
        [sound] = vocoder.push([state], [codes[0]])
        assert nothing.size == 0
        _close(np.concatenate([sound, vocoder.flush(state)]), expected)
        vocoder.close(state)

    def test_a_push_that_fails_changes_no_reply(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """Codes of another codec are refused, whoever is in the same push."""
        if vocoder.max_replies == 1:
            pytest.skip("the vocoder pushes one reply at a time")
        wrong = np.full((codes[0].shape[0] + 1, 2), -1, dtype=np.int64)
        expected = _whole(vocoder, codes[0])
        state, other = (vocoder.open(RequestParams(), {}) for _ in range(2))
        with pytest.raises(Exception):  # noqa: B017, PT011 - any error will do
            vocoder.push([state, other], [codes[0], wrong])
        [sound] = vocoder.push([state], [codes[0]])
        _close(np.concatenate([sound, vocoder.flush(state)]), expected)
        vocoder.close(state)
        vocoder.close(other)

    def test_as_many_replies_as_it_says_can_be_open(
        self, vocoder: StreamingVocoder, codes: Sequence[IntArray]
    ) -> None:
        """Again and again."""
        for _ in range(2):
            states = [vocoder.open(RequestParams(), {}) for _ in range(vocoder.max_replies or 8)]
            for state in states:
                vocoder.close(state)


def _whole(vocoder: StreamingVocoder, codes: IntArray) -> FloatArray:
    return _streamed(vocoder, codes, [])


def _streamed(vocoder: StreamingVocoder, codes: IntArray, cuts: Sequence[int]) -> FloatArray:
    state = vocoder.open(RequestParams(), {})
    parts = [vocoder.push([state], [piece])[0] for piece in np.split(codes, cuts, axis=1)]
    sound: FloatArray = np.concatenate([*parts, vocoder.flush(state)])
    vocoder.close(state)
    return sound


def _close(found: FloatArray, expected: FloatArray) -> None:
    assert found.shape == expected.shape, "another number of samples"
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
