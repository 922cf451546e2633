"""A tiny random Ming-flash-omni checkpoint in the published layout, written in two seconds.

Knows the files of a checkpoint and what goes into them. Seed 0 is, byte for byte, the checkpoint
that the goldens of the tests belong to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from omni_core.types import FloatArray
from omni_ming.tiny import campplus, config, talker, thinker, tokenizer, voices

__all__ = ["build", "build_text"]


def build(directory: str, seed: int = 0) -> None:
    """Write the checkpoint into `directory`, which is made if absent; files there are replaced."""
    generator = torch.Generator().manual_seed(seed)
    root = Path(directory)
    _write_thinker(root, generator)
    _write_talker(root / "talker", generator)
    _write_voices(root / "talker", np.random.default_rng(seed))


def build_text(directory: str, seed: int = 0) -> None:
    """Write the same without its Talker: a checkpoint that only answers in text."""
    _write_thinker(Path(directory), torch.Generator().manual_seed(seed))


def _write_thinker(root: Path, generator: torch.Generator) -> None:
    trained = tokenizer.train(tokenizer.THINKER_SPECIALS)
    model_config = config.model_config(trained.get_vocab())
    _dump(root / "config.json", model_config)
    _dump(root / "preprocessor_config.json", config.preprocessor_config())
    named = tokenizer.tokenizer_config(
        "<|role_end|>",
        "<|role_end|>",
        bos_token="<|startoftext|>",
        chat_template=tokenizer.CHAT_TEMPLATE,
    )
    _write_tokenizer(root, trained, named)
    _save_sharded(root, thinker.weights(model_config, generator))


def _write_talker(folder: Path, generator: torch.Generator) -> None:
    trained = tokenizer.train(tokenizer.TALKER_SPECIALS)
    llm = config.talker_llm_config(trained.get_vocab())
    own, vae = config.talker_config(), config.vae_config()
    named = tokenizer.tokenizer_config("<|im_end|>", "<|endoftext|>")
    _write_tokenizer(folder / "llm", trained, named)
    _dump(folder / "llm" / "config.json", llm)
    _dump(folder / "config.json", own)
    _save(folder / "model.safetensors", talker.talker_weights(llm, own, generator))
    _dump(folder / "vae" / "config.json", vae)
    _save(folder / "vae" / "model.safetensors", talker.vae_weights(vae, generator))


def _write_voices(folder: Path, rng: np.random.Generator) -> None:
    _dump(folder / "data" / "voice_name.json", voices.VOICE_NAMES)
    for name, recording in voices.recordings(rng).items():
        _open(folder / name).write_bytes(recording)
    shape = (campplus.MEL_BANDS, campplus.SPEAKER_DIM)
    projection: FloatArray = (rng.standard_normal(shape) / 9).astype(np.float32)
    (folder / "campplus.onnx").write_bytes(campplus.model(projection))


def _write_tokenizer(folder: Path, trained: Tokenizer, settings: Mapping[str, Any]) -> None:
    trained.save(str(_open(folder / "tokenizer.json")))
    _dump(folder / "tokenizer_config.json", settings)


def _save_sharded(root: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Two shards and their index, so that readers meet a sharded checkpoint."""
    names = sorted(tensors)
    half = len(names) // 2
    weight_map = {}
    for number, chosen in enumerate((names[:half], names[half:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        _save(root / file, {name: tensors[name] for name in chosen})
        weight_map.update(dict.fromkeys(chosen, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _dump(root / "model.safetensors.index.json", index)


def _save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, _open(path), metadata={"format": "pt"})


def _dump(path: Path, content: Any) -> None:
    _open(path).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def _open(path: Path) -> Path:
    """The path, in a directory that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
