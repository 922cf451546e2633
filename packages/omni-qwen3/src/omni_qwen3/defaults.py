"""What a checkpoint says a reply is sampled with, and what a server must know of it.

Reads config.json and generation_config.json only; imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Any

from omni_core.checkpoint.files import has_file, read_chat_template, read_json
from omni_core.checkpoint.quantization import refuse_quantised
from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, Ref, Transcription
from omni_core.text import calls
from omni_core.types import SamplingParams
from omni_qwen3.config import parse_config

NO_TALKER = "this checkpoint has no Talker (its config.json has no talker_config, or says no audio)"
"""Of Thinking and Captioner checkpoints, which answer in text."""
SAMPLE_RATE = 24_000
"""Of Code2Wav, in Hz. The checkpoint does not say it; the model card does."""
DEFAULT_VOICE = "ethan"
"""What transformers speaks with when no speaker is named."""

# Defaults of transformers' Qwen3OmniMoeForConditionalGeneration.generate, where a checkpoint's
# generation config is silent.
_THINKER_MAX_NEW_TOKENS = 1024
_TALKER = {
    "max_new_tokens": 4096,
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
}
# Defaults of transformers' GenerationConfig.
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}


def thinker_defaults(model_path: str) -> SamplingParams:
    """How the Thinker samples what a request leaves unset; greedy unless the checkpoint says
    `do_sample`. End tokens are `eos_token_ids`, not `stop_token_ids`: a request may add to them."""
    config = _generation_config(model_path)
    saved = {name: config.get(f"thinker_{name}", config.get(name)) for name in _SAMPLING}
    saved["do_sample"] = config.get("thinker_do_sample", config.get("do_sample"))
    saved["max_new_tokens"] = config.get("thinker_max_new_tokens", config.get("max_new_tokens"))
    fallback = {**_SAMPLING, "do_sample": False, "max_new_tokens": _THINKER_MAX_NEW_TOKENS}
    return _sampling(saved, fallback)


def talker_defaults(model_path: str) -> SamplingParams:
    """How the Talker samples group-0 codes; `max_tokens` counts as `talker_max_new_tokens`."""
    config = _generation_config(model_path)
    return _sampling({name: config.get(f"talker_{name}") for name in _TALKER}, _TALKER)


def _sampling(saved: dict[str, Any], fallback: dict[str, Any]) -> SamplingParams:
    chosen = {n: saved[n] if saved.get(n) is not None else fallback[n] for n in fallback}
    return SamplingParams(
        temperature=float(chosen["temperature"]) if chosen["do_sample"] else 0.0,
        top_k=int(chosen["top_k"]),
        top_p=float(chosen["top_p"]),
        repetition_penalty=float(chosen["repetition_penalty"]),
        max_tokens=int(chosen["max_new_tokens"]),
    )


def eos_token_ids(model_path: str) -> frozenset[int]:
    """Tokens that end the Thinker's reply and are no part of it."""
    saved = _generation_config(model_path).get("eos_token_id")
    if saved is None:
        saved = read_json(model_path, "config.json")["im_end_token_id"]
    return frozenset(saved) if isinstance(saved, list) else frozenset((saved,))


def describe(model_path: str) -> ModelInfo:
    """Context length, voices and modalities of a checkpoint; ConfigError if it is quantised."""
    refuse_quantised(model_path)
    config = read_json(model_path, "config.json")
    parsed = parse_config(config)
    speaks = parsed.talker is not None
    voices = tuple(config["talker_config"]["speaker_id"]) if speaks else ()
    default = DEFAULT_VOICE if DEFAULT_VOICE in map(str.lower, voices) else next(iter(voices), None)
    return ModelInfo(
        context_length=parsed.thinker.decoder.max_len,
        voices=voices,
        default_voice=default,
        sample_rate=SAMPLE_RATE if speaks else None,
        input_modalities=("text", "image", "audio", "video"),
        refused_modalities={} if speaks else {"audio": NO_TALKER},
        logprobs=True,
        reads_aloud=speaks,
        completes_prompts=True,
        transcription=Transcription(messages=Ref("omni_qwen3.transcribe:messages")),
        grammars=True,
        tools=_shows_tools(model_path),
    )


def _shows_tools(model_path: str) -> bool:
    """Whether the chat template writes functions and calls. That there must be a template is not
    said here but by the stage that needs one."""
    try:
        return calls.OPEN in read_chat_template(model_path)
    except ConfigError:
        return False


def _generation_config(model_path: str) -> dict[str, Any]:
    name = "generation_config.json"
    return read_json(model_path, name) if has_file(model_path, name) else {}
