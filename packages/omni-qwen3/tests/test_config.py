"""config.json as typed config."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_qwen3.config import load_config, parse_config


@pytest.fixture(scope="module")
def saved(tiny_checkpoint: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(tiny_checkpoint, "config.json").read_text("utf-8"))
    return content


@pytest.fixture
def data(saved: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(saved)


def test_reads_the_checkpoint(tiny_checkpoint: str, saved: dict[str, Any]) -> None:
    config = load_config(tiny_checkpoint)
    text = saved["thinker_config"]["text_config"]
    assert config.thinker.decoder.hidden_size == text["hidden_size"]
    assert config.thinker.decoder.moe is not None
    assert config.thinker.decoder.moe.experts == text["num_experts"]
    talker = config.require_talker()
    assert talker.decoder.moe is not None
    assert talker.decoder.moe.shared_intermediate_size is not None
    assert talker.predictor.moe is None
    assert talker.default_speaker == "ethan"


def test_reads_rope_as_transformers_4_wrote_it(data: dict[str, Any]) -> None:
    expected = parse_config(data)
    talker = data["talker_config"]
    for section in (
        data["thinker_config"]["text_config"],
        talker["text_config"],
        talker["code_predictor_config"],
    ):
        rope = section.pop("rope_parameters")
        section["rope_theta"] = rope.pop("rope_theta")
        section["rope_scaling"] = rope if "mrope_section" in rope else None
    assert parse_config(data) == expected


@pytest.mark.parametrize(
    "path",
    [
        "thinker_config",
        "thinker_config.text_config.num_hidden_layers",
        "thinker_config.text_config.rope_parameters.rope_theta",
        "talker_config.accept_hidden_layer",
        "talker_config.spatial_merge_size",
        "talker_config.text_config.shared_expert_intermediate_size",
    ],
)
def test_a_missing_key_is_named(data: dict[str, Any], path: str) -> None:
    *parents, key = path.split(".")
    section = data
    for parent in parents:
        section = section[parent]
    del section[key]
    with pytest.raises(ConfigError) as raised:
        parse_config(data)
    assert key in str(raised.value)


def test_unknown_keys_are_fine(data: dict[str, Any]) -> None:
    expected = parse_config(data)
    data["later"] = data["thinker_config"]["text_config"]["later"] = {"a": 1}
    assert parse_config(data) == expected


def test_a_mistyped_value_is_refused(data: dict[str, Any]) -> None:
    data["thinker_config"]["text_config"]["vocab_size"] = "many"
    with pytest.raises(ConfigError, match=r"text_config\.vocab_size is 'many', not int"):
        parse_config(data)


def test_a_variant_nobody_computes_is_refused(data: dict[str, Any]) -> None:
    data["thinker_config"]["text_config"]["hidden_act"] = "relu"
    with pytest.raises(ConfigError, match=r"hidden_act is 'relu'; only 'silu'"):
        parse_config(data)


def test_an_accepted_layer_that_does_not_exist_is_refused(data: dict[str, Any]) -> None:
    data["talker_config"]["accept_hidden_layer"] = 99
    with pytest.raises(ConfigError, match="accept_hidden_layer is 99"):
        parse_config(data)


def test_a_checkpoint_without_speech_loads_and_says_so(data: dict[str, Any]) -> None:
    data["enable_audio_output"] = False
    del data["talker_config"]
    config = parse_config(data)
    with pytest.raises(ConfigError, match="--variant text"):
        config.require_talker()


def test_without_ethan_the_first_speaker_is_the_default(data: dict[str, Any]) -> None:
    data["talker_config"]["speaker_id"] = {"Mina": 300, "Jo": 301}
    assert parse_config(data).require_talker().default_speaker == "mina"


def test_dense_layers_follow_the_sparse_step_and_the_list(data: dict[str, Any]) -> None:
    text = data["thinker_config"]["text_config"]
    text["decoder_sparse_step"], text["mlp_only_layers"] = 2, [3]
    decoder = parse_config(data).thinker.decoder
    sparse = [layer for layer in range(decoder.layers) if decoder.is_sparse(layer)]
    assert sparse == [1]


def test_without_a_talker_config_there_is_no_talker_and_published_ids_stand_in(
    data: dict[str, Any],
) -> None:
    """As the published Thinking and Captioner checkpoints may be written."""
    for key in ("enable_audio_output", "talker_config", "tts_pad_token_id", "im_end_token_id"):
        del data[key]
    config = parse_config(data)
    assert config.talker is None
    assert (config.tts_pad_token_id, config.im_end_token_id) == (151671, 151645)
