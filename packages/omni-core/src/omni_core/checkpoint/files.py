"""The small JSON files of a checkpoint directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError

SETTINGS = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("video_preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.json"),
)
TEXTS = ("merges.txt", "chat_template.jinja")
NOTES = ("transformers_version", "_name_or_path", "_commit_hash")
"""What tools write into the files, and nobody reads."""


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
            f"{model_path} has no {name}; point --model-path at a complete checkpoint directory"
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


def check_update(model_path: str, new_model_path: str, *, others: Sequence[str] = ()) -> None:
    """ConfigError unless the files beside the weights say the same: stages have read them when they
    were built, and read them again when they are started again. `others` are JSON files of this
    model alone."""
    differing = [
        name
        for name in (*SETTINGS, *TEXTS, *others)
        if _content(model_path, name) != _content(new_model_path, name)
    ]
    if differing:
        raise ConfigError(
            f"the new checkpoint's {', '.join(differing)} is not that of the one that is served; "
            "only the numbers of the weights may differ, anything else needs a new start"
        )


def _content(model_path: str, name: str) -> Any:
    """What a file says; None without it."""
    if not has_file(model_path, name):
        return None
    if name in TEXTS:
        return (Path(model_path) / name).read_bytes()
    content = read_json(model_path, name)
    return {key: value for key, value in content.items() if key not in NOTES}
