"""What a checkpoint's own files say about sampling, voices and context."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.types import SamplingParams
from omni_ming.defaults import (
    SPEAKERS,
    VOICES,
    check_update,
    describe,
    eos_token_ids,
    thinker_defaults,
)


@pytest.fixture
def checkpoint(tiny_checkpoint: str, tmp_path: Path) -> Path:
    """The tiny checkpoint without its weights, to change at will."""
    for source in [
        p for kind in ("json", "wav", "onnx") for p in Path(tiny_checkpoint).rglob(f"*.{kind}")
    ]:
        target = tmp_path / source.relative_to(tiny_checkpoint)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return tmp_path


def say(checkpoint: Path, **content: Any) -> str:
    (checkpoint / "generation_config.json").write_text(json.dumps(content))
    return str(checkpoint)


def change(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | content))


def test_replies_are_greedy_and_short_unless_the_checkpoint_says_otherwise(
    tiny_checkpoint: str, checkpoint: Path
) -> None:
    authors = SamplingParams(
        temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, max_tokens=512
    )
    assert thinker_defaults(tiny_checkpoint) == authors
    assert thinker_defaults(say(checkpoint, temperature=0.7)).temperature == 0
    path = say(checkpoint, do_sample=True, temperature=0.7, top_k=20, max_new_tokens=9)
    assert thinker_defaults(path) == SamplingParams(
        temperature=0.7, top_k=20, top_p=1.0, repetition_penalty=1.0, max_tokens=9
    )


def test_end_tokens(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    assert eos_token_ids(str(checkpoint)) == {config["llm_config"]["eos_token_id"]}
    assert eos_token_ids(say(checkpoint, eos_token_id=[3, 5])) == {3, 5}


def test_describe(checkpoint: Path) -> None:
    info = describe(str(checkpoint))
    assert info.context_length == 4096
    assert info.voices == ("DB30", "lingguang")
    assert info.default_voice == "DB30"
    assert info.sample_rate == 44_100
    assert info.refused_modalities == {}
    assert info.reads_aloud
    assert not info.tools
    assert set(info.input_modalities) == {"text", "image", "audio", "video"}


def test_describe_a_checkpoint_without_a_talker(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "talker")
    info = describe(str(checkpoint))
    assert (info.voices, info.default_voice, info.sample_rate) == ((), None, None)
    assert "talker/config.json" in info.refused_modalities["audio"]
    assert not info.reads_aloud


def test_quantised_weights_are_refused(checkpoint: Path) -> None:
    change(checkpoint / "config.json", quantization_config={"quant_method": "fp8"})
    with pytest.raises(ConfigError, match="fp8"):
        describe(str(checkpoint))


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "talker/config.json",
        "talker/llm/config.json",
        "talker/llm/tokenizer.json",
        "talker/vae/config.json",
        "talker/data/voice_name.json",
    ],
)
def test_an_update_may_change_nothing_but_weights(
    tiny_checkpoint: str, checkpoint: Path, name: str
) -> None:
    check_update(tiny_checkpoint, str(checkpoint))
    change(checkpoint / name, another={})
    with pytest.raises(ConfigError, match=name):
        check_update(tiny_checkpoint, str(checkpoint))


def test_an_update_keeps_the_voices(tiny_checkpoint: str, checkpoint: Path) -> None:
    listed = json.loads((checkpoint / VOICES).read_text())
    (checkpoint / "talker" / listed["lingguang"]["prompt_wav_path"]).unlink()
    with pytest.raises(ConfigError, match="no recording of lingguang"):
        check_update(tiny_checkpoint, str(checkpoint))
    check_update(str(checkpoint), tiny_checkpoint)


def test_an_update_keeps_the_network_of_speakers(tiny_checkpoint: str, checkpoint: Path) -> None:
    (checkpoint / SPEAKERS).unlink()
    with pytest.raises(ConfigError, match=SPEAKERS):
        check_update(tiny_checkpoint, str(checkpoint))
    check_update(str(checkpoint), tiny_checkpoint)


@pytest.mark.parametrize("entry", [{}, "x.wav", {"prompt_text": "hm", "prompt_wav_path": 1}])
def test_a_broken_list_of_voices_is_refused(checkpoint: Path, entry: Any) -> None:
    change(checkpoint / VOICES, broken=entry)
    with pytest.raises(ConfigError, match="'broken' needs prompt_text"):
        describe(str(checkpoint))
