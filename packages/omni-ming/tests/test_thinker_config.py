"""What is read of a checkpoint's Thinker, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_ming.model.config import load_thinker_config


@pytest.fixture
def copy(tiny_checkpoint: str, tmp_path: Path) -> Path:
    """The small files of the tiny checkpoint, to change."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(Path(tiny_checkpoint) / name, tmp_path)
    return tmp_path


def change(copy: Path, **llm: Any) -> None:
    """Set fields of llm_config; None takes one away."""
    path = copy / "config.json"
    config = json.loads(path.read_text())
    config["llm_config"] |= llm
    for name in [name for name, value in llm.items() if value is None]:
        del config["llm_config"][name]
    path.write_text(json.dumps(config))


def test_what_the_published_config_leaves_out_is_known(copy: Path, tiny_checkpoint: str) -> None:
    change(
        copy,
        head_dim=None,
        audio_patch_token=None,
        image_patch_token=1,
        video_patch_token=None,
    )
    assert load_thinker_config(str(copy)) == load_thinker_config(tiny_checkpoint)


def test_both_names_of_the_scale_are_read(copy: Path) -> None:
    change(copy, moe_router_topk_scaling_factor=1.5)
    assert load_thinker_config(str(copy)).moe.scale == 1.5
    change(copy, moe_router_topk_scaling_factor=None)
    assert load_thinker_config(str(copy)).moe.scale == 2.5
    change(copy, routed_scaling_factor=3.0)
    assert load_thinker_config(str(copy)).moe.scale == 3.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("router_type", "topN"),
        ("use_qk_norm", False),
        ("use_bias", True),
        ("score_function", "softmax"),
        ("tie_word_embeddings", True),
        ("rope_scaling", {"type": "yarn"}),
    ],
)
def test_another_variant_is_refused_by_its_field(copy: Path, field: str, value: Any) -> None:
    change(copy, **{field: value})
    with pytest.raises(ConfigError, match=f"llm_config.{field}"):
        load_thinker_config(str(copy))


def test_what_is_missing_is_named(copy: Path) -> None:
    tokenizer = copy / "tokenizer.json"
    named = tokenizer.read_text()
    tokenizer.write_text(named.replace("<audioPatch>", "<other>"))
    with pytest.raises(ConfigError, match="no <audioPatch>"):
        load_thinker_config(str(copy))
    tokenizer.write_text(named)
    change(copy, num_experts=None)
    with pytest.raises(ConfigError, match="lacks 'num_experts'"):
        load_thinker_config(str(copy))
    (copy / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no llm_config"):
        load_thinker_config(str(copy))
