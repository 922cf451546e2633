"""A checkpoint that cannot give an output runs the variant that does not emit it."""

from __future__ import annotations

import pytest

from omni_core.config.variant import choose_variant
from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, PipelineConfig, Ref, StageConfig

WORK = Ref("somewhere:build")
WORDS = StageConfig(name="words", factory=WORK, terminal="text")
VOICE = StageConfig(name="voice", factory=WORK, terminal="audio")
PARROT = PipelineConfig(
    name="parrot",
    architectures=("Parrot",),
    variants={"loud": (WORDS, VOICE), "text": (WORDS,), "radio": (VOICE,)},
    default_variant="loud",
    entry="words",
    describe=WORK,
)
ANY = ModelInfo(context_length=8)
MUTE = ModelInfo(context_length=8, refused_modalities={"audio": "it has no beak"})


def test_the_default_is_the_pipelines() -> None:
    assert choose_variant(PARROT, None, ANY) == "loud"
    assert choose_variant(PARROT, "radio", ANY) == "radio"


def test_a_checkpoint_that_cannot_speak_gets_the_variant_that_does_not() -> None:
    assert choose_variant(PARROT, None, MUTE) == "text"
    assert choose_variant(PARROT, "text", MUTE) == "text"


def test_asking_for_what_it_cannot_give_is_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(ConfigError) as raised:
        choose_variant(PARROT, "loud", MUTE)
    assert raised.value.message == (
        "variant 'loud' of 'parrot' emits audio: it has no beak; use --variant text"
    )


def test_a_checkpoint_no_variant_fits_is_refused() -> None:
    refused = ModelInfo(context_length=8, refused_modalities={"audio": "no beak", "text": "no"})
    with pytest.raises(ConfigError, match="no variant fits"):
        choose_variant(PARROT, None, refused)


def test_an_unknown_name_is_left_to_whoever_knows_the_names() -> None:
    assert choose_variant(PARROT, "silent", MUTE) == "silent"
