"""Encoder stages: company, caches, budgets and new weights change nothing that is computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_works import audio_work, encoder_context, visual_work
from golden_files import arrays, assert_close
from safetensors.torch import load_file, save_file

from omni_core.checkpoint.renew import PartsLoader
from omni_core.errors import ConfigError, OutOfMemoryError, RequestError, StageError
from omni_core.scheduler.base import Work
from omni_core.types import FloatArray
from omni_ming import encoders, tiny
from omni_ming.activation import audio_bytes, vision_patch_bytes

PATCH = 3 * 2 * 16 * 16
GRIDS = [[1, 4, 6], [1, 8, 8], [3, 4, 4]]
LENGTHS = [77, 150, 1, 77, 320]


def patches(grid: list[int], seed: int = 0) -> FloatArray:
    draw = np.random.default_rng([seed, *grid])
    return draw.standard_normal((int(np.prod(grid)), PATCH)).astype(np.float32)


def clip(frames: int, seed: int = 0) -> FloatArray:
    draw = np.random.default_rng([seed, frames])
    return draw.standard_normal((128, frames)).astype(np.float32)


@pytest.fixture(scope="module")
def images(tiny_checkpoint: str) -> Any:
    return encoders.load_image(encoder_context(tiny_checkpoint))


@pytest.fixture(scope="module")
def sounds(tiny_checkpoint: str) -> Any:
    return encoders.load_audio(encoder_context(tiny_checkpoint))


def calls_of(encoder: Any) -> list[int]:
    """Patches or mel frames of each call of an encoder's tower from now on."""
    sizes: list[int] = []

    def count(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        given = args[0]
        sizes.append(
            len(given) if isinstance(given, torch.Tensor) else sum(c.shape[1] for c in given)
        )

    encoder.encoder._tower.register_forward_pre_hook(count)
    return sizes


def test_rows_of_requests_are_the_authors_alone_and_together(images: Any, sounds: Any) -> None:
    golden = arrays("towers")
    seen = {
        kind: visual_work(
            kind, [golden[f"{kind}_pixel_values"]], golden[f"{kind}_grid_thw"].tolist()
        )
        for kind in ("image", "video")
    }
    for kinds in (("image",), ("video",), ("image", "video"), ("video", "image")):
        images.forget()
        for kind, made in zip(kinds, images([seen[kind] for kind in kinds]), strict=True):
            assert_close(made[kind]["embeds"], golden[f"{kind}_embeds"])
    first, second = np.split(
        golden["audio_feats"][0].T, [golden["audio_feats_lengths"][0, 0]], axis=1
    )
    one, two = (golden[f"audio_embeds_single{place}"][0] for place in (0, 1))
    works = [audio_work([first]), audio_work([second, first])]
    for order in ((0, 1), (1, 0)):
        sounds.forget()
        made = sounds([works[place] for place in order])
        assert_close(made[order.index(0)]["audio"], one)
        assert_close(made[order.index(1)]["audio"], np.concatenate([two, one]))


def test_each_picture_and_clip_of_a_batch_is_as_alone(images: Any, sounds: Any) -> None:
    seen = [visual_work("image", [patches(grid)], [grid]) for grid in GRIDS]
    heard = [audio_work([clip(frames, seed)]) for seed, frames in enumerate(LENGTHS)]
    for encoder, works, rows in (
        (images, seen, lambda made: made["image"]["embeds"]),
        (sounds, heard, lambda made: made["audio"]),
    ):
        alone = [rows(encoder([work])[0]) for work in works]
        encoder.forget()
        calls = calls_of(encoder)
        for made, expected in zip(encoder(works), alone, strict=True):
            assert_close(rows(made), expected)
        assert len(calls) == 1


def test_equal_items_are_encoded_once(images: Any, sounds: Any) -> None:
    seen = visual_work("image", [patches(GRIDS[0])] * 2, [GRIDS[0]] * 2)
    heard = audio_work([clip(40)] * 2)
    for encoder, work, rows in (
        (images, seen, lambda made: made["image"]["embeds"]),
        (sounds, heard, lambda made: made["audio"]),
    ):
        encoder.forget()
        calls = calls_of(encoder)
        [made] = encoder([work])
        [again] = encoder([work])
        assert len(calls) == 1
        assert torch.equal(*rows(made).chunk(2))
        assert torch.equal(rows(again), rows(made))


def test_calls_cut_to_a_budget_make_the_same_rows(tiny_checkpoint: str) -> None:
    work = visual_work("video", [patches(grid) for grid in GRIDS], GRIDS)
    whole = encoders.load_image(encoder_context(tiny_checkpoint))
    each = vision_patch_bytes(whole.encoder._tower.config, 4)
    cut = encoders.load_image(encoder_context(tiny_checkpoint, activation_budget_bytes=64 * each))
    calls = calls_of(cut)
    [expected], [made] = whole([work]), cut([work])
    assert len(calls) > 1
    assert max(calls) <= 64
    assert_close(made["video"]["embeds"], expected["video"]["embeds"])


def test_clips_are_spread_over_calls_and_never_cut(tiny_checkpoint: str) -> None:
    work = audio_work([clip(frames, seed) for seed, frames in enumerate(LENGTHS)])
    whole = encoders.load_audio(encoder_context(tiny_checkpoint))
    sizes = audio_bytes(whole.encoder._tower.config, 4)
    cut = encoders.load_audio(
        encoder_context(tiny_checkpoint, activation_budget_bytes=sizes.of(320))
    )
    calls = calls_of(cut)
    [expected], [made] = whole([work]), cut([work])
    assert calls == [77 + 150 + 1 + 77, 320]
    assert_close(made["audio"], expected["audio"])


def test_what_is_over_the_budget_by_itself_is_refused_by_name(tiny_checkpoint: str) -> None:
    images = encoders.load_image(encoder_context(tiny_checkpoint))
    each = vision_patch_bytes(images.encoder._tower.config, 4)
    images = encoders.load_image(
        encoder_context(tiny_checkpoint, activation_budget_bytes=63 * each)
    )
    sounds = encoders.load_audio(encoder_context(tiny_checkpoint))
    sizes = audio_bytes(sounds.encoder._tower.config, 4)
    sounds = encoders.load_audio(
        encoder_context(tiny_checkpoint, activation_budget_bytes=sizes.of(200))
    )
    small, large = (
        visual_work("image", [patches(GRIDS[0])], GRIDS[:1]),
        visual_work("image", [patches(grid) for grid in GRIDS[:2]], GRIDS[:2]),
    )
    short, long = audio_work([clip(200)]), audio_work([clip(10), clip(201)])
    for encoder, works, advice in (
        (images, [small, large], "lower max_pixels"),
        (sounds, [short, long], "the 2 s that this server has memory for"),
    ):
        served, refused = encoder(works)
        assert isinstance(served, dict)
        assert isinstance(refused, RequestError)
        assert refused.param == "messages[0].content[1]"
        assert advice in refused.message


def test_an_item_that_is_not_what_its_payload_says_fails_alone(images: Any, sounds: Any) -> None:
    wrong_picture = visual_work("image", [patches(GRIDS[0])], [[1, 4, 4]])
    wrong_clip = audio_work([clip(40)])
    wrong_clip.payload["audio"]["lengths"] = np.array([39])
    for encoder, good, bad in (
        (images, visual_work("image", [patches(GRIDS[1])], [GRIDS[1]]), wrong_picture),
        (sounds, audio_work([clip(41)]), wrong_clip),
    ):
        failed, served = encoder([bad, good])
        assert isinstance(failed, StageError)
        assert isinstance(served, dict)


def test_a_batch_without_memory_is_halved(
    tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [audio_work([clip(frames, seed)]) for seed, frames in enumerate(LENGTHS)]
    plain = encoders.load_audio(encoder_context(tiny_checkpoint))
    short = encoders.load_audio(encoder_context(tiny_checkpoint))
    forward = short.encoder._tower.forward

    def scarce(clips: list[torch.Tensor]) -> Any:
        if sum(clip.shape[1] for clip in clips) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(clips)

    monkeypatch.setattr(short.encoder._tower, "forward", scarce)
    *served, refused = short(works)
    assert isinstance(refused, OutOfMemoryError)
    for made, expected in zip(served, plain(works), strict=False):
        assert_close(made["audio"], expected["audio"])
    assert short.stats()["oom_splits"] > 0


@pytest.mark.parametrize("audio", [False, True], ids=["image", "audio"])
def test_new_weights_are_those_of_a_stage_built_of_them(
    tiny_checkpoint: str, tmp_path: Path, audio: bool
) -> None:
    other = str(tmp_path / "other")
    tiny.build(other, seed=1)
    work: Work = (
        audio_work([clip(60)]) if audio else visual_work("image", [patches(GRIDS[0])], GRIDS[:1])
    )

    def rows(encoder: Any) -> torch.Tensor:
        [made] = encoder([work])
        return made["audio"] if audio else made["image"]["embeds"]

    load: Any = encoders.load_audio if audio else encoders.load_image
    kept: list[PartsLoader] = []
    running = load(encoder_context(tiny_checkpoint, loads=kept.append))
    before, expected = rows(running), rows(load(encoder_context(other)))
    assert (before - expected).abs().max() > 0.01
    kept[0].check(other)
    assert torch.equal(rows(running), before)
    kept[0].load(other)
    assert torch.equal(rows(running), expected)


def changed(checkpoint: str, place: Path, tensors: dict[str, torch.Tensor | None]) -> str:
    """A copy of a checkpoint as one file, with tensors added, or taken away for None."""
    copy = Path(shutil.copytree(checkpoint, place / "copy"))
    weights = {}
    for file in sorted(copy.glob("model-*.safetensors")):
        weights |= load_file(file)
        file.unlink()
    for name, tensor in tensors.items():
        if tensor is None:
            del weights[name]
        else:
            weights[name] = tensor
    (copy / "model.safetensors.index.json").unlink()
    save_file(weights, copy / "model.safetensors")
    return str(copy)


def test_mergers_that_nothing_reads_may_be_there_or_not(
    tiny_checkpoint: str, tmp_path: Path, images: Any
) -> None:
    names = [
        f"vision.deepstack_merger_list.{level}.{part}.{kind}"
        for level in range(3)
        for part in ("norm", "linear_fc1", "linear_fc2")
        for kind in ("weight", "bias")
    ]
    without = encoders.load_image(
        encoder_context(changed(tiny_checkpoint, tmp_path, dict.fromkeys(names)))
    )
    work = visual_work("image", [patches(GRIDS[0])], GRIDS[:1])
    [expected], [made] = images([work]), without([work])
    assert torch.equal(made["image"]["embeds"], expected["image"]["embeds"])


@pytest.mark.parametrize("name", ["vision.blocks.4.norm1.weight", "linear_proj.4.weight"])
def test_tensors_that_the_tower_has_no_place_for_are_refused(
    tiny_checkpoint: str, tmp_path: Path, name: str
) -> None:
    path = changed(tiny_checkpoint, tmp_path, {name: torch.zeros(1)})
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        encoders.load_image(encoder_context(path))


def test_bfloat16_stays_near(tiny_checkpoint: str, images: Any, sounds: Any) -> None:
    seen, heard = visual_work("image", [patches(GRIDS[1])], [GRIDS[1]]), audio_work([clip(77)])
    low_images = encoders.load_image(encoder_context(tiny_checkpoint, "bfloat16"))
    low_sounds = encoders.load_audio(encoder_context(tiny_checkpoint, "bfloat16"))
    for low, full, work, rows in (
        (low_images, images, seen, lambda made: made["image"]["embeds"]),
        (low_sounds, sounds, heard, lambda made: made["audio"]),
    ):
        [made], [expected] = low([work]), full([work])
        likeness = torch.cosine_similarity(rows(made).float(), rows(expected), dim=-1)
        assert rows(made).dtype == torch.bfloat16
        assert likeness.min() > 0.995


def edited(checkpoint: str, directory: Path, section: str, key: str, value: Any) -> str:
    """config.json of a checkpoint with another value, or without one for None, alone."""
    data = json.loads((Path(checkpoint) / "config.json").read_text())
    part = data[section] if section else data
    part.pop(key)
    if value is not None:
        part[key] = value
    (directory / "config.json").write_text(json.dumps(data))
    return str(directory)


@pytest.mark.parametrize(
    ("section", "key", "value", "problem"),
    [
        ("vision_config", "depth", None, "vision_config lacks 'depth'"),
        ("vision_config", "hidden_act", "silu", "only 'gelu_pytorch_tanh' is supported"),
        ("audio_config", "ds_stride", 3, "ds_stride of audio_config is 3; only 2"),
        ("audio_config", "norm_query_embeds", False, "only True is supported"),
        ("audio_config", "whisper_encoder_config", None, "has no whisper_encoder_config"),
        ("", "mlp_depth", 1, "mlp_depth of the top level is 1; only 2"),
    ],
)
def test_a_config_that_the_towers_cannot_follow_is_refused(
    tiny_checkpoint: str, tmp_path: Path, section: str, key: str, value: Any, problem: str
) -> None:
    path = edited(tiny_checkpoint, tmp_path, section, key, value)
    load = encoders.load_audio if section == "audio_config" else encoders.load_image
    with pytest.raises(ConfigError, match=problem):
        load(encoder_context(path))
