"""Keys of media and of prompt rows: equal where the rows are, and nowhere else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import pytest
import torch

from media import frames, matroska, picture, png, sweep, wav
from omni_core.media import MediaLimits
from omni_core.media.keys import item_row_keys, media_key
from omni_core.types import (
    IntArray,
    MediaKind,
    MediaOptions,
    MediaPart,
    Message,
    RequestParams,
    TextPart,
)
from omni_qwen3.aggregate import merge
from omni_qwen3.payloads import Prepared, Prompt
from omni_qwen3.preprocess.stage import Preprocessor
from omni_qwen3.rowkeys import row_keys

File: TypeAlias = tuple[MediaKind, bytes]

SMALL = MediaOptions(min_pixels=4 * 1024, max_pixels=16 * 1024)
ONE: File = ("image", png(picture(128, 64)))
OTHER: File = ("image", png(picture(128, 64, seed=1)))
SHORT: File = ("audio", wav(sweep(1)))
LONG: File = ("audio", wav(sweep(2)))
CLIP: File = ("video", matroska(frames(6, 64, 64), sweep(3)))


@pytest.fixture(scope="module")
def preprocessor(tiny_checkpoint: str) -> Preprocessor:
    return Preprocessor(tiny_checkpoint, MediaLimits(), remembered=0)


def ask(
    preprocessor: Preprocessor,
    *parts: File | str,
    options: MediaOptions = SMALL,
) -> Prompt:
    content = tuple(
        TextPart(text=part) if isinstance(part, str) else MediaPart(kind=part[0], data=part[1])
        for part in parts
    )
    message = Message(role="user", content=content)
    return preprocessor.prompt((message,), RequestParams(media=options))


def keys(prompt: Prompt) -> IntArray:
    """Row keys as the Thinker sees them, behind encoders that give nothing but zeros."""

    def features(kind: str) -> dict[str, Any]:
        rows = len(prompt[kind]["rows"])
        return {"embeds": torch.zeros(rows, 1), "deepstack": torch.zeros(1, rows, 1)}

    sources: dict[str, Any] = {"preprocessing": prompt}
    sources["image_encoder"] = {
        kind: features(kind) for kind in ("image", "video") if kind in prompt
    }
    if "audio" in prompt:
        sources["audio_encoder"] = {"audio": torch.zeros(len(prompt["audio"]["rows"]), 1)}
    return row_keys(cast(Prepared, merge(sources)))


def items(prompt: Prompt) -> Iterator[tuple[bytes, Any]]:
    """Key and content of every item."""
    for kind in ("image", "video"):
        if kind in prompt:
            yield from zip(prompt[kind]["keys"], prompt[kind]["pixel_values"], strict=True)
    if "audio" in prompt:
        yield from zip(prompt["audio"]["keys"], prompt["audio"]["input_features"], strict=True)


def alike(one: IntArray, other: IntArray) -> int:
    """Rows at the beginning with equal keys."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def test_text_rows_have_their_token_ids(preprocessor: Preprocessor) -> None:
    prompt = ask(preprocessor, "What is this?")
    got = keys(prompt)
    np.testing.assert_array_equal(got, prompt["input_ids"])
    assert got is not prompt["input_ids"]


def test_media_rows_are_negative_and_text_rows_untouched(preprocessor: Preprocessor) -> None:
    prompt = ask(preprocessor, SHORT, "and", ONE, CLIP, "then", OTHER)
    got = keys(prompt)
    media = np.concatenate([prompt[kind]["rows"] for kind in ("image", "video", "audio")])
    np.testing.assert_array_equal(np.flatnonzero(got < 0), np.sort(media))
    np.testing.assert_array_equal(got[got >= 0], np.delete(prompt["input_ids"], media))
    assert got.dtype == np.int64
    assert len(np.unique(got[got < 0])) == len(media)


def test_the_same_text_with_another_picture_ends_at_the_picture(
    preprocessor: Preprocessor,
) -> None:
    one = ask(preprocessor, "Look:", ONE, "What is this?")
    other = ask(preprocessor, "Look:", OTHER, "What is this?")
    np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
    rows = one["image"]["rows"]
    assert alike(keys(one), keys(other)) == rows[0]
    assert not np.isin(keys(one)[rows], keys(other)[rows]).any()
    assert alike(keys(one), keys(ask(preprocessor, "Look:", ONE, "Why?"))) > rows[-1]


@pytest.mark.parametrize(
    "change", [{"max_pixels": 4 * 1024}, {"max_pixels": 17 * 1024}], ids=["smaller", "same size"]
)
def test_the_same_picture_read_otherwise_shares_no_row(
    preprocessor: Preprocessor, change: dict[str, int]
) -> None:
    one = keys(ask(preprocessor, ONE, "What is this?"))
    options = msgspec.structs.replace(SMALL, **change)
    other = keys(ask(preprocessor, ONE, "What is this?", options=options))
    assert not np.isin(one[one < 0], other[other < 0]).any()


@pytest.mark.parametrize(
    "change",
    [{"video_fps": 1.0}, {"video_max_frames": 4}, {"use_audio_in_video": True}],
    ids=lambda change: next(iter(change)),
)
def test_the_same_video_read_otherwise_shares_no_row(
    preprocessor: Preprocessor, change: dict[str, Any]
) -> None:
    one = keys(ask(preprocessor, CLIP, "What is this?"))
    options = msgspec.structs.replace(SMALL, **change)
    other = keys(ask(preprocessor, CLIP, "What is this?", options=options))
    assert not np.isin(one[one < 0], other[other < 0]).any()


def test_swapped_pictures_swap_their_keys(preprocessor: Preprocessor) -> None:
    one, swapped = (
        ask(preprocessor, *pair, "Which is red?") for pair in ((ONE, OTHER), (OTHER, ONE))
    )
    rows = one["image"]["rows"]
    first, second = rows[:8], rows[8:]
    assert alike(keys(one), keys(swapped)) == first[0]
    np.testing.assert_array_equal(keys(one)[first], keys(swapped)[second])
    np.testing.assert_array_equal(keys(one)[second], keys(swapped)[first])


def test_a_longer_clip_changes_how_a_shorter_one_is_encoded_and_so_its_keys(
    preprocessor: Preprocessor,
) -> None:
    alone, before_long = ask(preprocessor, SHORT), ask(preprocessor, SHORT, LONG)
    assert alike(keys(alone), keys(before_long)) == alone["audio"]["rows"][0]
    twice = ask(preprocessor, LONG, SHORT)
    assert alike(keys(ask(preprocessor, LONG)), keys(twice)) > twice["audio"]["rows"][25]


def test_equal_keys_mean_equal_rows_at_equal_positions(preprocessor: Preprocessor) -> None:
    """Over prompts of random parts, each compared with each."""
    draw = random.Random(0)
    parts: Sequence[File | str] = (ONE, OTHER, SHORT, LONG, CLIP, "and", "look")
    choices = [
        (
            draw.choices(parts, k=draw.randrange(1, 6)),
            msgspec.structs.replace(SMALL, use_audio_in_video=draw.random() < 0.5),
        )
        for _ in range(40)
    ]
    prompts = [ask(preprocessor, *chosen, options=options) for chosen, options in choices]
    found = [keys(prompt) for prompt in prompts]
    shared_media = 0
    for one, other in itertools.combinations(range(len(prompts)), 2):
        length = alike(found[one], found[other])
        for name in ("input_ids", "positions"):
            np.testing.assert_array_equal(
                prompts[one][name][..., :length], prompts[other][name][..., :length]
            )
        shared_media += int((found[one][:length] < 0).sum())
    assert shared_media > 100
    contents: dict[bytes, Any] = {}
    for key, content in itertools.chain.from_iterable(map(items, prompts)):
        np.testing.assert_allclose(contents.setdefault(key, content), content, atol=1e-5)
    assert len(contents) > len(parts)


def test_no_two_of_many_rows_collide() -> None:
    """Random items, and pairs of items whose keys differ in one bit."""
    draw = np.random.default_rng(0)
    items = [draw.bytes(16) for _ in range(500)]
    items += [bytes([item[0] ^ 1, *item[1:]]) for item in items[:250]]
    items += [bytes([*item[:15], item[15] ^ 128]) for item in items[:250]]
    rows = np.concatenate([item_row_keys(item, 200) for item in items])
    assert rows.max() < 0
    assert len(np.unique(rows)) == len(rows)


def test_rows_of_an_item_do_not_depend_on_how_many_there_are() -> None:
    np.testing.assert_array_equal(item_row_keys(b"x" * 16, 9)[:4], item_row_keys(b"x" * 16, 4))


def test_media_keys_are_the_same_everywhere_and_tell_facts_from_data() -> None:
    key = media_key(b"abc", "image", [1, 2, 3], None, 0.5)
    assert key.hex() == "4f1f2eab97f82d3e754b0842340fb9b7"
    different = {
        media_key(b"abc"),
        media_key(b"ab", "c"),
        media_key(b"abc", "c"),
        media_key(b"abc", None),
        media_key(b"abc", None, None),
        media_key(b"abc", 1, 23),
        media_key(b"abc", 12, 3),
        media_key(b"abc", [12, 3]),
    }
    assert len(different) == 8
