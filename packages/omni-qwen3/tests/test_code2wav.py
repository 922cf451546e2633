"""The vocoder network: any pieces equal the whole, and the whole equals transformers'."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_core.checkpoint.weights import Checkpoint
from omni_core.errors import StageError
from omni_core.steps import StepBank
from omni_core.types import FloatArray, IntArray, RequestParams
from omni_qwen3.code2wav.model import PREFIX, Code2Wav, load_model
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder, WindowVocoder

GROUPS, CODEBOOK_SIZE = 16, 64


def random_codes(frames: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(CODEBOOK_SIZE, size=(GROUPS, frames))


def load(checkpoint: str, dtype: str) -> Code2Wav:
    return load_model(checkpoint, device="cpu", dtype=dtype, report=lambda message: None)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: str) -> Code2Wav:
    return load(tiny_checkpoint, "float32")


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: str) -> Qwen3OmniMoeCode2Wav:
    config = Qwen3OmniMoeConfig.from_pretrained(tiny_checkpoint).code2wav_config
    config._attn_implementation = "sdpa"
    module = Qwen3OmniMoeCode2Wav(config).eval()
    with Checkpoint(tiny_checkpoint) as checkpoint:
        names = checkpoint.names(PREFIX)
        module.load_state_dict({n.removeprefix(PREFIX): checkpoint.tensor(n) for n in names})
    return module


def stateful(model: Code2Wav, max_replies: int = 4) -> Qwen3Vocoder:
    return Qwen3Vocoder(model, StepBank.eager(), max_replies=max_replies)


@torch.inference_mode()
def whole(model: Code2Wav, codes: IntArray) -> torch.Tensor:
    """One step over all frames: no state is ever read again."""
    seen = torch.zeros(1, dtype=torch.long)
    samples, _ = model(torch.from_numpy(codes)[None], seen, model.fresh_state())
    return samples[0, model.config.lookahead_samples :]


@torch.inference_mode()
def streamed(model: Code2Wav, codes: IntArray, sizes: Sequence[int]) -> torch.Tensor:
    """Decode in pieces of these sizes, the last one repeated to the end."""
    state, wavs, start = model.fresh_state(), [], 0
    for size in [*sizes, *[sizes[-1]] * codes.shape[1]]:
        piece = torch.from_numpy(codes[None, :, start : start + size])
        if piece.shape[2]:
            samples, state = model(piece, torch.tensor([start]), state)
            wavs.append(samples[0])
            start += piece.shape[2]
    return torch.cat(wavs)[model.config.lookahead_samples :]


@pytest.mark.parametrize(
    ("dtype", "tolerance", "frames", "sizes"),
    [
        ("float64", 1e-11, 160, [1, 2, 3, 30, 40]),  # 160: more than the network can see back
        ("float64", 1e-11, 20, [1]),
        ("float32", 1e-4, 160, [8]),
    ],
)
def test_any_pieces_give_the_samples_of_the_whole(
    tiny_checkpoint: str, dtype: str, tolerance: float, frames: int, sizes: list[int]
) -> None:
    model, codes = load(tiny_checkpoint, dtype), random_codes(frames)
    expected = whole(model, codes)
    assert expected.std() > 0.05
    torch.testing.assert_close(streamed(model, codes, sizes), expected, rtol=0, atol=tolerance)
    decoded = model.decode(torch.from_numpy(codes))
    torch.testing.assert_close(decoded, expected, rtol=0, atol=tolerance)


@torch.inference_mode()
def test_a_new_reply_and_an_old_one_share_a_step(tiny_checkpoint: str) -> None:
    """What lies before a reply's start must not be heard, whatever is in its neighbour's past."""
    model = load(tiny_checkpoint, "float64")
    old, new = (torch.from_numpy(random_codes(9, seed))[None] for seed in (1, 2))
    _, state = model(old[:, :, :6], torch.tensor([0]), model.fresh_state())
    batch = torch.cat([old[:, :, 6:], new[:, :, :3]]), torch.tensor([6, 0])
    samples, states = model(*batch, torch.cat([state, model.fresh_state()]))
    rest, _ = model(new[:, :, 3:], torch.tensor([3]), states[1:])
    late = model.config.lookahead_samples
    heard = torch.cat([samples[1, late:], rest[0]])
    torch.testing.assert_close(heard, whole(model, new[0].numpy()), rtol=0, atol=1e-11)
    expected = whole(model, old[0].numpy())[6 * 1920 - late :]
    torch.testing.assert_close(samples[0], expected, rtol=0, atol=1e-11)


def test_the_first_frame_gives_audio_and_each_further_frame_1920_samples(model: Code2Wav) -> None:
    config, vocoder, codes = model.config, stateful(model), random_codes(5)
    assert (config.samples_per_frame, config.lookahead_samples) == (1920, 555)
    slot = vocoder.open(RequestParams(), {})
    counts = [vocoder.push([slot], [codes[:, i : i + 1]])[0].size for i in range(5)]
    assert counts == [1365, 1920, 1920, 1920, 1920]


@torch.no_grad()
@pytest.mark.parametrize("frames", [1, 160])
def test_one_decode_equals_transformers(
    model: Code2Wav, reference: Qwen3OmniMoeCode2Wav, frames: int
) -> None:
    codes = torch.from_numpy(random_codes(frames))
    expected = reference(codes[None]).flatten()
    assert expected.numel() == frames * 1920 - 555
    torch.testing.assert_close(model.decode(codes), expected, rtol=0, atol=2e-4)


@torch.no_grad()
@pytest.mark.parametrize("frames", [20, 420])
def test_windows_equal_transformers_chunked_decode(
    model: Code2Wav, reference: Qwen3OmniMoeCode2Wav, frames: int
) -> None:
    codes = random_codes(frames)
    expected = reference.chunked_decode(torch.from_numpy(codes)[None]).flatten().numpy()
    vocoder = WindowVocoder(model)
    state = vocoder.open(RequestParams(), {})
    parts = [vocoder.push([state], [codes[:, i : i + 7]])[0] for i in range(0, frames, 7)]
    wav = np.concatenate([*parts, vocoder.flush(state)])
    assert wav.size == frames * 1920 - 555 * -(-frames // 300)
    np.testing.assert_allclose(wav, expected, rtol=0, atol=2e-4)


def test_replies_at_different_places_share_a_push(model: Code2Wav) -> None:
    vocoder = stateful(model, max_replies=3)
    codes = [random_codes(frames, seed=frames) for frames in (12, 90, 33)]
    slots = [vocoder.open(RequestParams(), {}) for _ in codes]
    heard: list[list[FloatArray]] = [[], [], []]
    taken = [0, 0, 0]
    for step in itertools.count():
        live = [i for i in range(3) if step >= 2 * i and taken[i] < codes[i].shape[1]]
        if not live:
            break
        sizes = [1 + (step + i) % 7 for i in live]
        pieces = [codes[i][:, taken[i] : taken[i] + n] for i, n in zip(live, sizes, strict=True)]
        wavs = vocoder.push([slots[i] for i in live], pieces)
        for i, piece, wav in zip(live, pieces, wavs, strict=True):
            heard[i].append(wav)
            taken[i] += piece.shape[1]
    for i in range(3):
        expected = whole(model, codes[i]).numpy()
        np.testing.assert_allclose(np.concatenate(heard[i]), expected, rtol=0, atol=2e-4)


def test_replies_of_unequal_chunks_share_steps(model: Code2Wav) -> None:
    bank = StepBank.eager()
    vocoder = Qwen3Vocoder(model, bank, max_replies=4)
    slots = [vocoder.open(RequestParams(), {}) for _ in range(4)]
    vocoder.push(slots, [random_codes(frames) for frames in (5, 5, 4, 1)])
    assert bank.stats()["step_calls_eager"] == 3  # 5 frames of two replies, 4 of one, 1 of one


def test_a_failed_push_changes_nothing(model: Code2Wav) -> None:
    vocoder, codes = stateful(model), random_codes(4)
    slots = [vocoder.open(RequestParams(), {}) for _ in range(2)]
    for wrong in (np.full((16, 2), CODEBOOK_SIZE), np.full((16, 2), -1), np.zeros((4, 2), int)):
        with pytest.raises(StageError):
            vocoder.push(slots, [codes, wrong])
    heard = vocoder.push(slots[:1], [codes])[0]
    np.testing.assert_allclose(heard, whole(model, codes).numpy(), rtol=0, atol=2e-4)


def test_empty_codes_change_nothing(model: Code2Wav) -> None:
    vocoder = stateful(model)
    slot = vocoder.open(RequestParams(), {})
    assert vocoder.push([slot], [random_codes(0)])[0].size == 0
    assert vocoder.push([slot], [random_codes(1)])[0].size == 1365
    assert vocoder.flush(slot).size == 0


def test_slots_are_bounded_and_given_back_once(model: Code2Wav) -> None:
    vocoder = stateful(model, max_replies=2)
    slots = [vocoder.open(RequestParams(), {}) for _ in range(2)]
    with pytest.raises(StageError, match="max_replies"):
        vocoder.open(RequestParams(), {})
    vocoder.close(slots[0])
    with pytest.raises(ValueError, match="free already"):
        vocoder.close(slots[0])
    assert vocoder.free_slots == 1


class SlotMachine(RuleBasedStateMachine):
    """Replies open, grow and close in any order; each sounds as if it were alone."""

    model: ClassVar[Code2Wav]
    expected: ClassVar[FloatArray]
    codes = random_codes(12, seed=5)

    def __init__(self) -> None:
        super().__init__()
        self.vocoder = stateful(self.model, max_replies=3)
        self.taken: dict[int, int] = {}

    @precondition(lambda self: len(self.taken) < 3)
    @rule()
    def open_one(self) -> None:
        slot = self.vocoder.open(RequestParams(), {})
        assert slot not in self.taken
        self.taken[slot] = 0

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def push_some(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.taken)), min_size=1, unique=True))
        counts = [data.draw(st.integers(0, 12 - self.taken[slot])) for slot in slots]
        starts = [self.taken[slot] for slot in slots]
        wavs = self.vocoder.push(
            slots, [self.codes[:, s : s + n] for s, n in zip(starts, counts, strict=True)]
        )
        for slot, start, count, wav in zip(slots, starts, counts, wavs, strict=True):
            first, last = (max(0, frame * 1920 - 555) for frame in (start, start + count))
            np.testing.assert_allclose(wav, self.expected[first:last], rtol=0, atol=2e-4)
            self.taken[slot] += count

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def close_one(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.taken)))
        self.vocoder.close(slot)
        del self.taken[slot]

    @invariant()
    def no_slot_is_lost(self) -> None:
        assert self.vocoder.free_slots == 3 - len(self.taken)


def test_no_slot_leaks_and_no_past_is_shared(model: Code2Wav) -> None:
    SlotMachine.model = model
    SlotMachine.expected = whole(model, SlotMachine.codes).numpy()
    run_state_machine_as_test(
        SlotMachine,
        settings=settings(
            max_examples=15, stateful_step_count=12, deadline=None, derandomize=True, database=None
        ),
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's memory counters")
def test_memory_stays_flat_over_a_long_reply(model: Code2Wav) -> None:
    """OMNI_LONG_REPLY_FRAMES=4000 is the full length."""
    vocoder, codes = stateful(model), random_codes(8)
    slot = vocoder.open(RequestParams(), {})
    frames = int(os.environ.get("OMNI_LONG_REPLY_FRAMES", "1000"))
    for _ in range(100 // 8):
        vocoder.push([slot], [codes])
    before = resident_bytes()
    for _ in range((frames - 100) // 8):
        vocoder.push([slot], [codes])
    assert resident_bytes() - before < 20e6


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
