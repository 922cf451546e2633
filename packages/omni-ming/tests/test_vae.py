"""The AudioVAE beside the authors': whole, streamed in any pieces, and many at once."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch
from golden_files import arrays, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.specs import StageConfig, StageContext
from omni_core.types import FloatArray
from omni_ming.vae.encoder import load_encoder, reference_latents
from omni_ming.vae.stream import Push, StreamingVae

LATENTS = 36


@pytest.fixture(scope="module")
def vae(tiny_checkpoint: str) -> StreamingVae:
    return StreamingVae.load(
        StageContext(
            stage=StageConfig(name="talker", factory=StreamingVae.load),
            model_path=tiny_checkpoint,
            device="cpu",
            dtype="float32",
            ar_engine="torch",
            report=lambda message: None,
        )
    )


def latents() -> torch.Tensor:
    return torch.from_numpy(arrays("vae")["latents"][0])


def streamed(vae: StreamingVae, rows: torch.Tensor, sizes: list[int]) -> list[FloatArray]:
    slot, parts = vae.open(), list(rows.split(sizes))
    return [
        vae.push([Push(slot, part, last=index == len(parts) - 1)])[0]
        for index, part in enumerate(parts)
    ]


def in_pieces(total: int, size: int) -> list[int]:
    return [min(size, total - at) for at in range(0, total, size)]


@torch.inference_mode()
def test_each_step_of_the_whole(vae: StreamingVae) -> None:
    golden, decoder = arrays("vae"), vae.decoder
    rows = decoder.widened(latents()[None])
    assert_close(rows, golden["fc1"])
    frames = decoder.frames(rows)
    assert_close(frames, golden["upsampled"])
    assert_close(decoder.backbone(frames)[0], golden["backbone"])
    assert_close(decoder(latents()[None]), golden["full"][0])


@pytest.mark.parametrize("size", [4, 8, 12])
def test_streamed_as_the_authors_stream(size: int, vae: StreamingVae) -> None:
    later = StreamingVae(vae.decoder, held=None)
    made = streamed(later, latents(), in_pieces(LATENTS, size))
    assert [len(part) for part in made] == arrays("vae")[f"stream{size}.lengths"].tolist()
    assert_close(np.concatenate(made), arrays("vae")["full"][0, 0])


def test_a_single_patch(vae: StreamingVae) -> None:
    [made] = streamed(vae, latents()[:4], [4])
    assert_close(made, arrays("vae")["stream_single_chunk"][0, 0])


def test_sound_comes_with_the_first_patch(vae: StreamingVae) -> None:
    made = streamed(vae, latents(), [4] * 9)
    hop = vae.decoder.config.hop
    assert [len(part) for part in made[:3]] == [int(10.5 * hop), 16 * hop, 16 * hop]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 3))
def test_any_pieces_make_the_whole(vae: StreamingVae, sizes: list[int], begin: int) -> None:
    rows = latents()[begin:]
    total = sum(sizes)
    rows = rows.repeat(1 + total // len(rows), 1)[:total]
    whole = vae.decoder(rows[None])[0]
    assert_close(np.concatenate(streamed(vae, rows, sizes)), whole)


def test_many_at_once_equal_each_alone(vae: StreamingVae) -> None:
    """They begin one after the other, so that no two have had as much."""
    rows = [latents()[n:].roll(n, dims=0) for n in range(5)]
    alone = [np.concatenate(streamed(vae, part, in_pieces(len(part), 4))) for part in rows]
    slots, made = [vae.open() for _ in rows], [np.zeros(0, dtype=np.float32) for _ in rows]
    before = vae.steps
    for turn in range(20):
        pushes, who = [], []
        for n, part in enumerate(rows):
            at = 4 * (turn - n)
            if 0 <= at < len(part):
                pushes.append(Push(slots[n], part[at : at + 4], last=at + 4 >= len(part)))
                who.append(n)
        for n, sound in zip(who, vae.push(pushes), strict=True):
            made[n] = np.concatenate([made[n], sound])
    for n, sound in enumerate(made):
        assert_close(sound, alone[n])
    assert vae.steps - before < sum(-(-len(part) // 4) for part in rows)


@torch.inference_mode()
def test_a_reference_is_encoded(tiny_checkpoint: str) -> None:
    golden, encoder = arrays("vae"), load_encoder(tiny_checkpoint)
    sound, rate = soundfile.read(f"{tiny_checkpoint}/talker/data/spks/prompt.wav", dtype="float32")
    assert rate == encoder.config.sample_rate
    padded = torch.nn.functional.pad(torch.from_numpy(sound), (-len(sound) % 14112, 0))
    assert len(padded) == golden["enc.padded_len"]
    mean, deviation = encoder(padded)
    assert_close(mean, golden["enc.mean"][0])
    assert_close(deviation, golden["enc.std"][0])
    noise = torch.from_numpy(golden["enc.noise"][0])
    assert_close(reference_latents(encoder, sound, noise), golden["enc.latent"][0])
    drawn = reference_latents(encoder, sound, 0)
    assert torch.equal(drawn, reference_latents(encoder, sound, 0))
    assert not torch.equal(drawn, reference_latents(encoder, sound, 1))
