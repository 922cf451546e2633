"""The declared topology: sound in every variant, light to import, every name resolvable."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from omni_core.config import Asked, resolve
from omni_core.encoder import budget as memory
from omni_core.encoder import cached
from omni_core.encoder.options import CACHE_ENTRIES
from omni_core.engine.torch_engine import TorchEngineConfig
from omni_core.errors import ConfigError
from omni_core.graph import needed
from omni_core.media import MediaLimits
from omni_ming import encoders, tiny
from omni_ming.defaults import describe
from omni_ming.pipeline import MING_OMNI
from omni_ming.talker.stage import AT_ONCE

VARIANTS = sorted(MING_OMNI.variants)
SPEAKERS = {
    "speech": {"voice_encoder", "talker"},
    "streaming_speech": {"voice_encoder", "segmenter", "talker_stream"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_of_a_stage_can_be_set_by_an_operator(variant: str) -> None:
    parsed = dict.fromkeys(("thinker", "talker", "talker_stream"), TorchEngineConfig)
    known = {name: {field.name for field in fields(kind)} for name, kind in parsed.items()}
    for speaker in ("talker", "talker_stream"):
        known[speaker].add(AT_ONCE)
    known["preprocessing"] = {field.name for field in fields(MediaLimits)} | {CACHE_ENTRIES}
    shared = {memory.OPTION, CACHE_ENTRIES, cached.CACHE_BYTES}
    known["image_encoder"] = shared | {encoders.MAX_BATCH_PATCHES}
    known["audio_encoder"] = shared | {encoders.MAX_BATCH_FRAMES}
    known["voice_encoder"] = {CACHE_ENTRIES}
    for stage in MING_OMNI.variants[variant]:
        assert set(stage.options) == known.get(stage.name, set()), stage.name
        assert set(stage.options.values()) <= {None}, "the value is the factory's to choose"


@pytest.mark.parametrize(("variant", "speakers"), SPEAKERS.items())
def test_a_text_request_never_needs_the_speech_stages(variant: str, speakers: set[str]) -> None:
    stages = MING_OMNI.variants[variant]
    assert needed(stages, ["text", "audio"]) - needed(stages, ["text"]) == speakers
    text = {stage.name for stage in MING_OMNI.variants["text"]}
    assert text == needed(stages, ["text"])


def test_every_variant_starts_on_one_card_and_on_none() -> None:
    for variant in VARIANTS:
        asked = Asked(flags={"variant": variant})
        for cards in (0, 1):
            stages = resolve(MING_OMNI, asked, cards=cards).stages
            assert {stage.gpu for stage in stages} <= {None, 0}
            assert sum(stage.memory_fraction or 0 for stage in stages) < 1


def test_a_talker_that_does_not_fit_beside_the_thinker_is_told_to_move() -> None:
    fields = {"thinker.memory_fraction": "0.9"}
    with pytest.raises(ConfigError, match=r"does not fit on card 0: .* of 'talker_stream'"):
        resolve(MING_OMNI, Asked(overrides=fields), cards=2)
    moved = resolve(MING_OMNI, Asked(overrides={**fields, "talker_stream.gpu": "1"}), cards=2)
    assert {stage.name for stage in moved.stages if stage.gpu == 1} == {"talker_stream"}


def test_a_checkpoint_without_a_talker_is_served_as_text(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    tiny.build_text(str(tmp_path))
    for path, variant in ((str(tmp_path), "text"), (tiny_checkpoint, "streaming_speech")):
        resolved = resolve(MING_OMNI, Asked(), cards=0, info=describe(path))
        assert resolved.settings["variant"].value == variant
    asked = Asked(flags={"variant": "speech"})
    with pytest.raises(ConfigError, match="cannot speak; use --variant text"):
        resolve(MING_OMNI, asked, cards=0, info=describe(str(tmp_path)))


def test_every_stage_has_a_process_on_the_cpu() -> None:
    names = {stage.name for stages in MING_OMNI.variants.values() for stage in stages}
    assert set(MING_OMNI.cpu_processes) == names


def test_the_plugin_imports_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, omni_ming\n"
        "(pipeline,) = omni_ming.register_pipelines()\n"
        "assert pipeline.name == 'ming-omni'\n"
        "import omni_ming.defaults, omni_ming.edges, omni_ming.aggregate\n"
        "heavy = {'torch', 'transformers', 'PIL', 'av', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
