"""A tiny random Qwen3-Omni checkpoint in the published format, written in a second.

Knows the files of a checkpoint and what goes into them. Runs no model: every value is drawn from a
seeded generator or is a constant that `tests/parity/calibrate.py` found, so two machines write the
same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_qwen3.tiny import config, template, tokenizer, weights

__all__ = ["build", "build_text"]


def build_text(directory: str, seed: int = 0) -> None:
    """Write a checkpoint like the published Thinking: no Talker and no vocoder, and a chat template
    that opens a thought. The Thinker is `build`'s but for one row."""
    write(Path(directory), seed, weights.CALIBRATION, speech=False)


def build(directory: str, seed: int = 0) -> None:
    """Write the checkpoint into `directory`, which is made if absent; files there are replaced.

    With seed 0, greedy replies end by themselves after a few dozen tokens and frames; another seed
    gives another valid model whose replies may run to their limit.
    """
    write(Path(directory), seed, weights.CALIBRATION)


def write(
    directory: Path, seed: int, calibration: weights.Calibration, *, speech: bool = True
) -> None:
    """Write all files; `calibration` is a parameter for the script that searches for it."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = tokenizer.Vocabulary()
    describe = config.model_config if speech else config.text_config
    model_config = describe(vocabulary.ids)
    files: dict[str, dict[str, Any]] = {
        "config.json": model_config,
        "generation_config.json": config.generation_config(vocabulary.ids),
        "processor_config.json": config.processor_config(),
        "tokenizer.json": tokenizer.tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer.tokenizer_config(),
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    chat_template = template.CHAT_TEMPLATE if speech else template.THINKING_TEMPLATE
    (directory / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    weights.save(weights.draw(model_config, vocabulary, seed, calibration), directory)
