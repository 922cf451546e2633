"""Voices that requests bring: what is refused, what is made of them, and that it is spoken with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from recordings import hum, wav
from safetensors.torch import load_file, save_file

from omni_core.encoder.prompts import made_prompt
from omni_core.errors import ContextLengthError, MediaError, OmniError, RequestError, StageError
from omni_core.media import MediaLimits
from omni_core.scheduler.base import Work
from omni_core.types import FloatArray, MediaPart, RequestParams, VoiceSample
from omni_ming.edges import wait_for_voice, with_voice
from omni_ming.preprocess import voice
from omni_ming.preprocess.stage import Preprocessor
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.voice_encoder import VoiceEncoder
from omni_ming.voices import Voice, Voices, voice_of

PARAMS = RequestParams(modalities=("audio",))
PATCH = 14_112
RATE = 44_100


def sample(data: bytes, text: str = "Hello.") -> VoiceSample:
    return VoiceSample(audio=MediaPart(kind="audio", data=data), text=text)


@pytest.fixture(scope="module")
def preprocessor(tiny_checkpoint: str) -> Preprocessor:
    return Preprocessor(tiny_checkpoint, MediaLimits())


def work(preprocessor: Preprocessor, asked: VoiceSample) -> Work:
    prompt: dict[str, Any] = {}
    preprocessor.add_voice(prompt, asked)
    return Work("r", PARAMS, prompt)


def made(encoder: VoiceEncoder, *works: Work) -> list[dict[str, Any]]:
    results = encoder(works)
    assert not any(isinstance(result, OmniError) for result in results)
    return results  # type: ignore[return-value]


def loud(samples: float) -> FloatArray:
    sound = hum(2.0)
    sound[1000] = samples
    return sound


NO_VOICE = {
    "short": (wav(hum(0.9)), "lasts 0.90 s"),
    "long": (wav(hum(30.5)), "30 s"),
    "silent": (wav(np.zeros(96_000, np.float32)), "0.0 s of the recording are not silent"),
    "faint": (wav(hum(3.0, loud=1e-4)), "not silent"),
    "a click": (wav(np.concatenate([hum(0.3), np.zeros(96_000, np.float32)])), "0.3 s of"),
    "no number": (wav(loud(np.nan)), "no numbers"),
    "endless": (wav(loud(np.inf)), "no numbers"),
    "too loud": (wav(loud(1e30)), "full scale"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), ""),
    "nothing": (b"", ""),
}


@pytest.mark.parametrize("case", NO_VOICE)
def test_a_recording_without_a_voice_is_refused(case: str, preprocessor: Preprocessor) -> None:
    data, words = NO_VOICE[case]
    with pytest.raises(MediaError) as refused:
        work(preprocessor, sample(data))
    assert words in refused.value.message
    assert refused.value.param == "voice_sample"


def test_nor_is_one_with_more_text_than_anybody_says(preprocessor: Preprocessor) -> None:
    with pytest.raises(RequestError, match="1001 characters") as refused:
        work(preprocessor, sample(wav(hum(2)), "a" * 1001))
    assert refused.value.param == "voice_sample.text"


def test_nor_is_one_whose_text_leaves_no_room_to_speak(tiny_checkpoint: str) -> None:
    prompts = TalkerPrompts(tiny_checkpoint, 4)
    latents = torch.zeros(12, 64)
    assert len(prompts("Hello.", Voice("😀" * 200, latents, None)).ids) > 800
    with pytest.raises(ContextLengthError, match="room for 1024") as refused:
        prompts("Hello.", Voice("😀" * 300, latents, None))
    assert refused.value.param == "voice_sample.text"


def test_a_pipeline_that_clones_no_voices_says_so(preprocessor: Preprocessor) -> None:
    given = {"read_aloud": "Hello.", "voice_sample": msgspec.msgpack.encode(sample(wav(hum(2))))}
    asked = Work("r", PARAMS, given)
    assert isinstance(made_prompt(preprocessor, asked), StageError)
    prompt = made_prompt(preprocessor, asked, preprocessor.add_voice)
    assert isinstance(prompt, dict)
    assert prompt["spoken_text"] == "Hello."
    assert prompt["voice"]["text"] == "Hello."


def test_a_recording_is_the_same_at_both_rates(preprocessor: Preprocessor) -> None:
    voice = work(preprocessor, sample(wav(hum(1.5)), "  Hello. ")).payload["voice"]
    assert abs(len(voice["sound"]) - 1.5 * RATE) < 2
    assert abs(len(voice["heard"]) - 1.5 * 16_000) < 2
    assert voice["text"] == "Hello."


def test_a_recording_that_comes_again_is_not_decoded_again(
    tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Preprocessor(tiny_checkpoint, MediaLimits())
    first = work(own, sample(wav(hum(1.5)), "one")).payload["voice"]
    monkeypatch.setattr(voice, "load_voice", None)
    again = work(own, sample(wav(hum(1.5)), "two")).payload["voice"]
    assert again == {**first, "text": "two"}
    monkeypatch.undo()
    other = work(own, sample(wav(hum(2.5)))).payload["voice"]
    assert len(other["sound"]) > len(first["sound"])


def test_a_presets_recording_is_the_presets_voice(
    preprocessor: Preprocessor, tiny_checkpoint: str
) -> None:
    """But for the draw of its latents, which is about their deviation away."""
    data = (Path(tiny_checkpoint) / "talker/data/lg/prompt_15014.wav").read_bytes()
    preset = Voices(tiny_checkpoint).get("lingguang")
    assert preset is not None
    encoder = VoiceEncoder(tiny_checkpoint, entries=4)
    [cloned] = made(encoder, work(preprocessor, sample(data, preset.prompt_text)))
    voice = voice_of(cloned)  # type: ignore[arg-type]
    assert voice.prompt_text == preset.prompt_text
    assert voice.latents.shape == preset.latents.shape
    assert voice.speaker is not None
    assert preset.speaker is not None
    assert torch.equal(voice.speaker, preset.speaker)
    assert not torch.equal(voice.latents, preset.latents)


def test_equal_recordings_are_one_voice_and_others_are_not(
    preprocessor: Preprocessor, tiny_checkpoint: str
) -> None:
    encoder = VoiceEncoder(tiny_checkpoint, entries=4)
    one, other = wav(hum(1.5)), wav(hum(1.5, pitch=300))
    asked = [work(preprocessor, sample(data, text)) for data, text in ((one, "a"), (other, "b"))]
    first, second = made(encoder, *asked)
    assert len(first["latents"]) * PATCH // 4 == -(-round(1.5 * RATE) // PATCH) * PATCH
    assert not torch.equal(first["latents"], second["latents"])
    assert not torch.equal(first["speaker"], second["speaker"])
    [again] = made(encoder, work(preprocessor, sample(one, "c")))
    assert again["latents"] is first["latents"]
    assert (first["text"], again["text"]) == ("a", "c")
    [elsewhere] = made(VoiceEncoder(tiny_checkpoint, entries=0), asked[0])
    assert torch.equal(elsewhere["latents"], first["latents"])
    assert encoder.stats()["cache_hits"] == 1


def test_a_new_checkpoint_makes_other_voices(
    preprocessor: Preprocessor, tiny_checkpoint: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_checkpoint, other)
    weights = other / "talker/vae/model.safetensors"
    changed = load_file(weights)
    changed["encoder.fc1.weight"] *= 2
    save_file(changed, weights)
    encoder = VoiceEncoder(tiny_checkpoint, entries=4)
    asked = work(preprocessor, sample(wav(hum(1.5))))
    [before] = made(encoder, asked)
    encoder.check(str(other))
    encoder.load(str(other))
    [after] = made(encoder, asked)
    assert not torch.equal(before["latents"], after["latents"])
    [fresh] = made(VoiceEncoder(str(other), entries=4), asked)
    assert torch.equal(after["latents"], fresh["latents"])
    del changed["encoder.cls_embed"]
    save_file(changed, weights)
    with pytest.raises(OmniError, match="cls_embed"):
        encoder.check(str(other))


def test_who_speaks_waits_for_a_voice_that_is_to_come() -> None:
    voice, start = {"text": "x"}, {"cloned": True}
    assert wait_for_voice({"voice_encoder": voice}) is None
    assert wait_for_voice({"thinker": {}}) == {"thinker"}
    assert wait_for_voice({"thinker": start}) == {"thinker", "voice_encoder"}
    assert with_voice({"thinker": {}}) == {}
    both = with_voice({"voice_encoder": voice, "segmenter": start})
    assert both == {"cloned": True, "voice": voice}
