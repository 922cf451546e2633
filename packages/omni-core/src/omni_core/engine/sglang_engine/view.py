"""A part of a checkpoint as upstream wants to find it: a directory with a config.json of its own
and those weight files that hold tensors of the part.

Knows files and names. Knows nothing of upstream, and copies no weights.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@contextmanager
def part_of(model_path: str, config: Mapping[str, Any], prefixes: Sequence[str]) -> Iterator[str]:
    """The directory, for as long as the context is open; ConfigError if the checkpoint has no
    tensors under one of `prefixes`."""
    source = Path(model_path).absolute()
    with tempfile.TemporaryDirectory(prefix="omni-part-") as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps(config))
        if (source / INDEX_FILE).is_file():
            kept = _kept(source, prefixes)
            (directory / INDEX_FILE).write_text(json.dumps({"weight_map": kept}))
            files = set(kept.values())
        else:
            files = {SINGLE_FILE}
        for file in sorted(files):
            if not (source / file).is_file():
                raise ConfigError(f"{source} lacks {file}; finish the download")
            (directory / file).symlink_to(source / file)
        yield name


def _kept(source: Path, prefixes: Sequence[str]) -> dict[str, str]:
    mapping = json.loads((source / INDEX_FILE).read_text())["weight_map"]
    for prefix in prefixes:
        if not any(tensor.startswith(prefix) for tensor in mapping):
            raise ConfigError(f"{source} has no tensors under {prefix!r}; download it again")
    wanted = tuple(prefixes)
    return {tensor: file for tensor, file in mapping.items() if tensor.startswith(wanted)}
