"""The stages without processes: notes, strips and sound."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from omni_core.codec import INLINE_LIMIT_BYTES
from omni_core.scheduler.base import Work
from omni_core.testing.fakes import running
from omni_core.types import Message, RequestParams, SamplingParams, TextPart
from omni_pianola.composer import Composer
from omni_pianola.instrument import Instrument, name_of
from omni_pianola.roll import Player, Reply


def work(text: str, **sampling: int) -> Work:
    message = Message(role="user", content=(TextPart(text=text),))
    payload = {"messages": msgspec.msgpack.encode((message,))}
    return Work("r", RequestParams(sampling=SamplingParams(**sampling)), payload)


def test_letters_become_notes_and_strips() -> None:
    with running(Composer(Instrument()), [work("a b!")]) as (_, outbox):
        outbox.wait_for("complete", "r")
        calls = outbox.of("r")
    texts = [call.value.text for call in calls if call.method == "emit"]
    strips = [call.value for call in calls if call.method == "stream"]
    assert texts == [f"{name_of(Instrument().note(letter))} " for letter in "ab"]
    assert [strip.shape for strip in strips] == [(128, 40), (128, 40)]
    assert all(strip.nbytes > INLINE_LIMIT_BYTES for strip in strips)


def test_max_tokens_cuts_the_tune() -> None:
    with running(Composer(Instrument()), [work("abc", max_tokens=2)]) as (_, outbox):
        assert outbox.wait_for("complete", "r").value == "length"


def test_the_pitch_is_right() -> None:
    strip = np.zeros((128, 200), dtype=np.int64)
    strip[69] = 127
    [samples] = Player(Instrument()).push([Reply()], [strip])
    assert samples.shape == (16_000,)
    assert int(np.abs(np.fft.rfft(samples)).argmax()) == 440
    assert np.abs(samples).max() == pytest.approx(0.25, abs=1e-3)


def test_any_chunking_sounds_the_same() -> None:
    player = Player(Instrument())
    roll = np.random.default_rng(0).integers(0, 3, (128, 30)) * 20
    [whole] = player.push([Reply()], [roll])
    reply = Reply()
    pieces = [player.push([reply], [roll[:, a:b]])[0] for a, b in ((0, 1), (1, 8), (8, 30))]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-6)
