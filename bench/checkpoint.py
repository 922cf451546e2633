"""A tiny checkpoint whose replies end only at their limit, so that all runs do the same work.

Knows which two tokens end a reply and its speech, and where their rows lie. Runs no model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import load_file, save_file

TEXT_HEAD: Final = "thinker.lm_head.weight"
SPEECH_HEAD: Final = "talker.codec_head.weight"


def build_tiny(directory: Path) -> str:
    """A tiny checkpoint, calibrated to end its replies; returns the path as the servers want it."""
    command = [sys.executable, "-m", "omni_server", "tiny", "qwen3", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(directory)


def build_endless(directory: Path) -> str:
    """The same with the end tokens' rows of both heads zeroed: neither is ever the best token."""
    build_tiny(directory)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    ends = {
        TEXT_HEAD: config["im_end_token_id"],
        SPEECH_HEAD: config["talker_config"]["codec_eos_token_id"],
    }
    for name, row in ends.items():
        shard = directory / index[name]
        tensors = load_file(shard)
        tensors[name][row] = 0.0
        save_file(tensors, shard, metadata={"format": "pt"})
    return str(directory)
