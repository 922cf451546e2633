"""Refuses checkpoints with quantised weights by name, before anything of them is loaded.

Knows where the field's tools write that they quantised something, and nothing of their formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from omni_core.checkpoint.files import has_file, read_json
from omni_core.errors import ConfigError

_KEYS: Final = ("quantization_config", "compression_config")
"""Of config.json, at any depth; the second is compressed-tensors' own older name."""
_FILES: Final = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""What tools that leave config.json alone write beside it, and the method each stands for."""
_BITSANDBYTES: Final = ("load_in_4bit", "load_in_8bit")


def refuse_quantised(model_path: str) -> None:
    """ConfigError if any part of the checkpoint is quantised: where that is said, the method, and
    what to use instead."""
    if has_file(model_path, "config.json"):
        for where, section in _sections(read_json(model_path, "config.json"), ""):
            raise _refused(f"{where} of config.json", _method(section))
    for name, method in _FILES.items():
        if has_file(model_path, name):
            raise _refused(name, method)
    directory = Path(model_path)
    gguf = sorted(path.name for path in directory.glob("*.gguf"))
    if gguf and not any(directory.glob("*.safetensors")):
        raise _refused(gguf[0], "gguf")


def _sections(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(full name, content) of each quantisation section, outermost first."""
    inner = {key: value for key, value in config.items() if isinstance(value, Mapping) and value}
    for key in _KEYS:
        if key in inner:
            yield prefix + key, inner[key]
    for key, value in inner.items():
        if key not in _KEYS:
            yield from _sections(value, f"{prefix}{key}.")


def _method(section: Mapping[str, Any]) -> str:
    if any(section.get(key) for key in _BITSANDBYTES):
        return "bitsandbytes"
    return str(section.get("quant_method") or section.get("quant_algo") or "an unnamed method")


def _refused(where: str, method: str) -> ConfigError:
    return ConfigError(
        f"the weights of this checkpoint are quantised: {where} says {method}. Quantised weights "
        "are not supported; use the checkpoint they were made from, in safetensors of bfloat16 "
        "(the publisher's own are), with a memory_fraction that holds it"
    )
