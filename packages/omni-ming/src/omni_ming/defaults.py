"""What a checkpoint says a reply is sampled with, and what a server must know of it.

Reads small files only; imports neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.checkpoint import files
from omni_core.checkpoint.files import has_file, read_json
from omni_core.checkpoint.quantization import refuse_quantised
from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, Ref, Transcription, VoiceCloning
from omni_core.types import SamplingParams
from omni_ming.model.config import load_thinker_config
from omni_ming.silence import QUIET

TALKER = "talker"
"""Folder of the speech model within a checkpoint."""
VOICES = f"{TALKER}/data/voice_name.json"
SPEAKERS = f"{TALKER}/campplus.onnx"
"""The network that tells speakers apart."""
SPEAKER_RATE = 16_000
"""In Hz, of what it hears."""
DEFAULT_VOICE = "DB30"
"""What the authors speak with when no voice is named."""
NO_TALKER = f"this checkpoint has no {TALKER}/config.json, so it cannot speak"
MAX_NEW_TOKENS = 512
"""Of a reply that does not think aloud, in the authors' examples, which are greedy."""


def thinker_defaults(model_path: str) -> SamplingParams:
    """How the Thinker samples what a request leaves unset: greedy, unless generation_config.json
    says `do_sample`."""
    config = _generation_config(model_path)
    return SamplingParams(
        temperature=float(config.get("temperature", 1.0)) if config.get("do_sample") else 0.0,
        top_k=int(config.get("top_k") or 0),
        top_p=float(config.get("top_p") or 1.0),
        repetition_penalty=float(config.get("repetition_penalty") or 1.0),
        max_tokens=int(config.get("max_new_tokens") or MAX_NEW_TOKENS),
    )


def eos_token_ids(model_path: str) -> frozenset[int]:
    """Tokens that end the Thinker's reply and are no part of it."""
    saved = _generation_config(model_path).get("eos_token_id")
    if saved is None:
        saved = load_thinker_config(model_path).eos_token_id
    return frozenset(saved) if isinstance(saved, list) else frozenset((saved,))


@dataclass(frozen=True, slots=True)
class Preset:
    """A voice that comes with the checkpoint."""

    text: str
    """What its reference says."""
    file: str
    """The reference, within the folder of the speech model."""


def preset_voices(model_path: str) -> dict[str, Preset]:
    """The voices whose references are there, by name. ConfigError for an entry that is not one, and
    for a file outside the folder."""
    found = {}
    folder = Path(model_path) / TALKER
    listed = read_json(model_path, VOICES) if has_file(model_path, VOICES) else {}
    for name, entry in listed.items():
        match entry:
            case {"prompt_text": str(text), "prompt_wav_path": str(file)}:
                preset = Preset(text=text, file=file)
            case _:
                raise ConfigError(
                    f"{VOICES} of {model_path}: {name!r} needs prompt_text and prompt_wav_path; "
                    "download it again"
                )
        path = (folder / preset.file).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ConfigError(f"{VOICES} of {model_path}: {preset.file!r} is outside of {TALKER}/")
        if path.is_file():
            found[name] = preset
    return found


def describe(model_path: str) -> ModelInfo:
    """Context length, voices and modalities of a checkpoint; ConfigError if it is quantised."""
    refuse_quantised(model_path)
    config = load_thinker_config(model_path)
    speaks = has_file(model_path, f"{TALKER}/config.json")
    names = tuple(preset_voices(model_path)) if speaks else ()
    default = DEFAULT_VOICE if DEFAULT_VOICE in names else next(iter(names), None)
    return ModelInfo(
        context_length=config.max_len,
        voices=names,
        default_voice=default,
        sample_rate=_sample_rate(model_path) if speaks else None,
        input_modalities=("text", "image", "audio", "video"),
        refused_modalities={} if speaks else {"audio": NO_TALKER},
        logprobs=True,
        reads_aloud=speaks,
        clones_voices=voice_cloning(model_path) if speaks else None,
        completes_prompts=True,
        transcription=Transcription(messages=Ref("omni_ming.transcribe:messages")),
        grammars=True,
        tools=False,
    )


def voice_cloning(model_path: str) -> VoiceCloning:
    """What the Talker's voices are made of: recordings at the VAE's rate, of which every 0.32 s are
    a row of each utterance's prompt, and at the speaker encoder's."""
    return VoiceCloning(sample_rates=(_sample_rate(model_path), SPEAKER_RATE), quiet=QUIET)


def check_update(model_path: str, new_model_path: str) -> None:
    """ConfigError unless the new checkpoint differs in the numbers of its weights alone, the files
    of its Talker and its voices included."""
    own = ("config.json", "llm/config.json", "llm/tokenizer.json", "vae/config.json")
    others = (*(f"{TALKER}/{name}" for name in own), VOICES)
    files.check_update(model_path, new_model_path, others=others)
    gone = preset_voices(model_path).keys() - preset_voices(new_model_path).keys()
    if gone:
        raise ConfigError(
            f"the new checkpoint has no recording of {', '.join(sorted(gone))}, which are served; "
            f"copy the files that {VOICES} names"
        )
    if has_file(model_path, SPEAKERS) and not has_file(new_model_path, SPEAKERS):
        raise ConfigError(
            f"the new checkpoint has no {SPEAKERS}, without which its voices sound alike; copy it"
        )


def _sample_rate(model_path: str) -> int:
    return int(read_json(model_path, f"{TALKER}/vae/config.json")["sample_rate"])


def _generation_config(model_path: str) -> dict[str, Any]:
    name = "generation_config.json"
    return read_json(model_path, name) if has_file(model_path, name) else {}
