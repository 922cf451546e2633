"""The vocoder network: any pieces equal the whole, and the whole equals transformers'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_core.types import IntArray, RequestParams
from omni_qwen3.code2wav.memory import Memory
from omni_qwen3.code2wav.model import PREFIX, Code2Wav, load_model
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder, WindowVocoder
from omni_qwen3.weights import Checkpoint

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


def streamed(model: Code2Wav, codes: IntArray, sizes: Sequence[int]) -> torch.Tensor:
    """Decode in pieces of these sizes, the last one repeated to the end."""
    memory, pieces, start = Memory(), [], 0
    for i in range(codes.shape[1]):
        size = sizes[min(i, len(sizes) - 1)]
        piece = torch.from_numpy(codes[:, start : start + size])
        pieces.append(model.push([memory], piece[None])[0])
        start += size
        if start >= codes.shape[1]:
            break
    return torch.cat(pieces)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "frames", "sizes"),
    [
        ("float64", 1e-10, 160, [1, 2, 3, 30, 40]),  # 160: more than the network can see back
        ("float64", 1e-10, 20, [1]),
        ("float32", 2e-4, 160, [8]),
    ],
)
def test_any_pieces_give_the_samples_of_the_whole(
    tiny_checkpoint: str, dtype: str, tolerance: float, frames: int, sizes: list[int]
) -> None:
    model, codes = load(tiny_checkpoint, dtype), random_codes(frames)
    whole = model.decode(torch.from_numpy(codes))
    assert whole.std() > 0.05
    torch.testing.assert_close(streamed(model, codes, sizes), whole, rtol=0, atol=tolerance)


def test_the_first_frame_gives_audio_and_each_further_frame_1920_samples(model: Code2Wav) -> None:
    config, memory, codes = model.config, Memory(), torch.from_numpy(random_codes(5))
    assert (config.samples_per_frame, config.lookahead_samples) == (1920, 555)
    counts = [model.push([memory], codes[None, :, i : i + 1]).shape[1] for i in range(5)]
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
    vocoder = WindowVocoder(model, "cpu")
    state = vocoder.open(RequestParams(), {})
    parts = [vocoder.push([state], [codes[:, i : i + 7]])[0] for i in range(0, frames, 7)]
    wav = np.concatenate([*parts, vocoder.flush(state)])
    assert wav.size == frames * 1920 - 555 * -(-frames // 300)
    np.testing.assert_allclose(wav, expected, rtol=0, atol=2e-4)


def test_replies_at_different_places_share_a_push(model: Code2Wav) -> None:
    vocoder = Qwen3Vocoder(model, "cpu")
    codes = [random_codes(frames, seed=frames) for frames in (12, 90, 33)]
    alone = [model.decode(torch.from_numpy(c)).numpy() for c in codes]
    states = [vocoder.open(RequestParams(), {}) for _ in codes]
    heard: list[list[np.ndarray]] = [[], [], []]
    taken = [0, 0, 0]
    for step in range(40):
        live = [i for i in range(3) if step >= 2 * i and taken[i] < codes[i].shape[1]]
        pieces = [codes[i][:, taken[i] : taken[i] + 3] for i in live]
        for i, wav in zip(live, vocoder.push([states[i] for i in live], pieces), strict=True):
            heard[i].append(wav)
            taken[i] += 3
    for i in range(3):
        np.testing.assert_allclose(np.concatenate(heard[i]), alone[i], rtol=0, atol=2e-4)


def test_close_frees_the_past(model: Code2Wav) -> None:
    vocoder = Qwen3Vocoder(model, "cpu")
    state = vocoder.open(RequestParams(), {})
    vocoder.push([state], [random_codes(2)])
    assert state.past
    vocoder.close(state)
    assert not state.past


def test_empty_codes_change_nothing(model: Code2Wav) -> None:
    vocoder = Qwen3Vocoder(model, "cpu")
    state = vocoder.open(RequestParams(), {})
    assert vocoder.push([state], [random_codes(0)])[0].size == 0
    assert state.is_fresh
    assert vocoder.flush(state).size == 0
