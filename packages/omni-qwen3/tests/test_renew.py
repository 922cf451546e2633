"""Weights of another checkpoint in stages that run: they are those of stages built of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_core.checkpoint.files import check_update
from omni_core.checkpoint.renew import PartsLoader, copy_into
from omni_core.checkpoint.weights import INDEX_FILE, Part
from omni_core.errors import ConfigError
from omni_core.specs import StageConfig, StageContext, WeightLoader
from omni_qwen3 import encoders, talker, thinker, tiny
from omni_qwen3.code2wav import stage as code2wav

BUILDERS: dict[str, Callable[[StageContext], Any]] = {
    "thinker": thinker.build,
    "talker_ar": talker.build,
    "image_encoder": encoders.build_image,
    "audio_encoder": encoders.build_audio,
    "code2wav": code2wav.build,
}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with other numbers."""
    directory = str(tmp_path_factory.mktemp("other") / "tiny")
    tiny.build(directory, seed=1)
    return directory


@cache
def loader_of(name: str, model_path: str) -> PartsLoader:
    """What a stage hands over when it is built."""
    kept: list[WeightLoader] = []
    context = StageContext(
        stage=StageConfig(name=name, factory=BUILDERS[name], options={"kv_budget_bytes": 2**22})
        if name in ("thinker", "talker_ar")
        else StageConfig(name=name, factory=BUILDERS[name]),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda text: None,
        loads=kept.append,
    )
    BUILDERS[name](context)
    [loader] = kept
    assert isinstance(loader, PartsLoader)
    return loader


def tensors(value: object) -> Iterator[torch.Tensor]:
    """All that a part is made of."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors(item)


def numbers(loader: PartsLoader) -> list[torch.Tensor]:
    return [tensor.clone() for part in loader.parts for tensor in tensors(part.made)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", BUILDERS)
def test_new_weights_are_those_of_a_stage_built_of_them(
    name: str, tiny_checkpoint: str, other: str
) -> None:
    running, fresh = loader_of(name, tiny_checkpoint), loader_of(name, other)
    before = numbers(running)
    running.check(other)
    assert same(numbers(running), before)
    assert not same(before, numbers(fresh))
    running.load(other)
    assert same(numbers(running), numbers(fresh))
    running.load(tiny_checkpoint)
    assert same(numbers(running), before)


def copied(checkpoint: str, place: Path) -> Path:
    return Path(shutil.copytree(checkpoint, place))


def rewritten(directory: Path, name: str, change: Callable[[bytearray], None]) -> None:
    """Change the header of the file that holds a tensor."""
    index = json.loads((directory / INDEX_FILE).read_text())["weight_map"]
    path = directory / index[name]
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


HEAD = "thinker.lm_head.weight"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.pop(), "bytes"),
        (lambda data: data.__setitem__(slice(0, 8), b"\xff" * 8), "safetensors header"),
        (lambda data: _rename(data, HEAD, "thinker.lm_head.wejght"), "does not hold"),
        (lambda data: data.__setitem__(slice(None), data.replace(b'"F32"', b'"I32"')), "I32"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_told_by_name(
    change: Callable[[bytearray], None], told: str, tiny_checkpoint: str, other: str, tmp_path: Path
) -> None:
    running = loader_of("thinker", tiny_checkpoint)
    bad = copied(other, tmp_path / "bad")
    rewritten(bad, HEAD, change)
    before = numbers(running)
    with pytest.raises(ConfigError, match=told):
        running.check(str(bad))
    assert same(numbers(running), before)


def test_tensors_that_are_missing_left_over_or_elsewhere_are_named(
    tiny_checkpoint: str, other: str, tmp_path: Path
) -> None:
    running = loader_of("code2wav", tiny_checkpoint)
    bad = copied(other, tmp_path / "bad")
    index = json.loads((bad / INDEX_FILE).read_text())
    name = "code2wav.code_embedding.weight"
    file = index["weight_map"].pop(name)
    for changed, told in (
        ({}, "lacks the tensor 'code2wav.code_embedding.weight'"),
        ({name: file, "code2wav.more": file}, "does not hold 'code2wav.more'"),
        ({name: "../../secret"}, "no file beside it"),
        ({name: "gone.safetensors"}, "finish the download"),
    ):
        mapping = {**index["weight_map"], **changed}
        (bad / INDEX_FILE).write_text(json.dumps({"weight_map": mapping}))
        with pytest.raises(ConfigError, match=told):
            running.check(str(bad))


def _rename(data: bytearray, old: str, new: str) -> None:
    at = data.index(old.encode())
    data[at : at + len(new)] = new.encode()


@pytest.mark.parametrize(
    ("held", "made"),
    [
        (torch.zeros(2), torch.zeros(3)),
        ((torch.zeros(2),), (torch.zeros(2), torch.zeros(2))),
        (Part(1, repr), Part(2, repr)),
        (torch.zeros(2), 1.0),
    ],
)
def test_only_numbers_of_tensors_may_differ(held: object, made: object) -> None:
    with pytest.raises(ValueError, match="cannot become"):
        copy_into(held, made)


def test_files_beside_the_weights_must_say_the_same(tiny_checkpoint: str, tmp_path: Path) -> None:
    new = copied(tiny_checkpoint, tmp_path / "new")
    config = json.loads((new / "config.json").read_text())
    (new / "config.json").write_text(json.dumps({**config, "transformers_version": "9"}, indent=9))
    check_update(tiny_checkpoint, str(new))
    (new / "config.json").write_text(json.dumps({**config, "tts_pad_token_id": 1}))
    (new / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"new checkpoint's config.json, chat_template.jinja is"):
        check_update(tiny_checkpoint, str(new))
    (new / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        check_update(tiny_checkpoint, str(new))
