"""The small JSON files of a checkpoint directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError


def has_file(model_path: str, name: str) -> bool:
    """Whether the checkpoint has the file `name`."""
    return (Path(model_path) / name).is_file()


def read_json(model_path: str, name: str) -> dict[str, Any]:
    """Contents of the JSON object in `name`; ConfigError if it is missing or is not one."""
    path = Path(model_path) / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(
            f"{model_path} has no {name}; point --model-path at a complete Qwen3-Omni checkpoint "
            "directory"
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{path} is not valid JSON ({exc}); download it again") from exc
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def read_chat_template(model_path: str) -> str:
    """The chat template; ConfigError if there is none. Checkpoints keep it in one of three places;
    what the tokenizer itself reads comes last."""
    if has_file(model_path, "chat_template.json"):
        template: str = read_json(model_path, "chat_template.json")["chat_template"]
        return template
    if has_file(model_path, "chat_template.jinja"):
        return (Path(model_path) / "chat_template.jinja").read_text(encoding="utf-8")
    saved = read_json(model_path, "tokenizer_config.json").get("chat_template")
    if not isinstance(saved, str):
        raise ConfigError(
            f"{model_path} has no chat template; add chat_template.jinja or download it again"
        )
    return saved
