"""What a checkpoint says it is, read before any model code is imported.

Knows config.json and no model.
"""

from __future__ import annotations

import json
from pathlib import Path

from omni_core.errors import ConfigError
from omni_core.extensions import Checkpoint


def architectures(model_path: str) -> tuple[str, ...]:
    """The "architectures" of a checkpoint's config.json; ConfigError says what is missing."""
    path = Path(model_path) / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as exc:
        raise ConfigError(f"{model_path} {_lacks_config(Path(model_path))}") from exc
    except ValueError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc
    found = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{path} is not a model config with an 'architectures' list")
    return tuple(found)


def checkpoint_at(model_path: str) -> Checkpoint:
    """What there is in a directory for plugins to recognise; nothing, if it is none."""
    directory = Path(model_path)
    if not directory.is_dir():
        return Checkpoint(path=model_path, files=())
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        config = {}
    return Checkpoint(
        path=model_path,
        files=tuple(sorted(entry.name for entry in directory.iterdir())),
        config=config if isinstance(config, dict) else {},
    )


def _lacks_config(path: Path) -> str:
    """What is there instead of config.json, and what to give."""
    if path.suffix == ".gguf" or any(path.glob("*.gguf")):
        return (
            "is in gguf, a format of quantised weights that is not supported; give the directory "
            "of the checkpoint it was made from, in safetensors"
        )
    return "holds no config.json; give the directory of a downloaded checkpoint"
