"""Weights for the echo: one word in weights.json, which two of its stages say or ignore, and orders
to misbehave while they load it.

    {"word": "!"}                          what the writer says after each word
    {"word": "!", "fail": "voice"}         fails in that stage, half-loaded
    {"word": "!", "die": "voice"}          ends the process of that stage
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError, StageError
from omni_core.specs import StageContext

FILE = "weights.json"


class EchoWeights:
    """`WeightLoader` of one stage; without a file, the word is empty."""

    def __init__(self, ctx: StageContext) -> None:
        self._stage = ctx.stage.name
        self.word = _read(ctx.model_path).get("word", "")
        ctx.loads(self)

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        if not isinstance(_read(model_path).get("word", ""), str):
            raise ConfigError(f"{self._stage}: 'word' of {FILE} is no text")

    def load(self, model_path: str) -> None:
        """See `WeightLoader`."""
        weights = _read(model_path)
        if weights.get("die") == self._stage:
            os._exit(4)
        self.word = weights.get("word", "")
        if weights.get("fail") == self._stage:
            raise StageError(f"{self._stage} was asked to fail")


def same_model(model_path: str, new_model_path: str) -> None:
    """ConfigError unless both are checkpoints of the echo."""
    config = "config.json"
    if not (Path(new_model_path) / config).is_file():
        raise ConfigError(f"the new checkpoint has no {config}")


def _read(model_path: str) -> dict[str, Any]:
    path = Path(model_path) / FILE
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content
