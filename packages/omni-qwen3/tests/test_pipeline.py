"""The declared topology: sound in every variant, light to import, every name resolvable."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from omni_core.encoder import budget as memory
from omni_core.encoder import cached
from omni_core.encoder.options import CACHE_ENTRIES
from omni_core.engine.torch_engine import TorchEngineConfig
from omni_core.graph import needed
from omni_core.media import MediaLimits
from omni_qwen3 import encoders
from omni_qwen3.code2wav import stage as code2wav
from omni_qwen3.pipeline import QWEN3_OMNI

VARIANTS = sorted(QWEN3_OMNI.variants)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_of_a_stage_can_be_set_by_an_operator(variant: str) -> None:
    parsed = {
        "preprocessing": MediaLimits,
        "thinker": TorchEngineConfig,
        "talker_ar": TorchEngineConfig,
        "code2wav": code2wav.Options,
    }
    known = {name: {field.name for field in fields(kind)} for name, kind in parsed.items()}
    known["preprocessing"].add(CACHE_ENTRIES)
    shared = {memory.OPTION, CACHE_ENTRIES, cached.CACHE_BYTES}
    known["image_encoder"] = shared | {encoders.MAX_BATCH_PATCHES}
    known["audio_encoder"] = shared | {encoders.MAX_BATCH_FRAMES}
    for stage in QWEN3_OMNI.variants[variant]:
        assert set(stage.options) == known.get(stage.name, set()), stage.name
        assert set(stage.options.values()) <= {None}, "the value is the factory's to choose"


def test_a_text_request_never_needs_the_speech_stages() -> None:
    stages = QWEN3_OMNI.variants["speech"]
    speech_only = needed(stages, ["text", "audio"]) - needed(stages, ["text"])
    assert speech_only == {"talker_ar", "code2wav"}
    assert {stage.name for stage in QWEN3_OMNI.variants["text"]} == needed(stages, ["text"])


def test_cards_of_the_variants() -> None:
    def cards(variant: str) -> dict[str, int]:
        stages = QWEN3_OMNI.variants[variant]
        return {stage.name: stage.gpu for stage in stages if isinstance(stage.gpu, int)}

    assert set(cards("text").values()) == {0}
    assert set(cards("speech_colocated").values()) == {0}
    assert {name for name, card in cards("speech").items() if card == 1} == {
        "talker_ar",
        "code2wav",
    }
    colocated = QWEN3_OMNI.variants["speech_colocated"]
    assert sum(stage.memory_fraction or 0 for stage in colocated) < 1
    assert all(stage.process is None for stage in colocated), "a process per stage"


def test_every_stage_has_a_process_on_the_cpu() -> None:
    names = {stage.name for stages in QWEN3_OMNI.variants.values() for stage in stages}
    assert set(QWEN3_OMNI.cpu_processes) == names


def test_the_plugin_imports_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, omni_qwen3\n"
        "(pipeline,) = omni_qwen3.register_pipelines()\n"
        "assert pipeline.name == 'qwen3-omni'\n"
        "import omni_qwen3.defaults, omni_qwen3.edges, omni_qwen3.aggregate\n"
        "heavy = {'torch', 'transformers', 'PIL', 'av'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
