"""The tiny checkpoint is the one behind the goldens, byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from golden_files import GOLDEN

from omni_ming import tiny


def digests(directory: str) -> dict[str, str]:
    root = Path(directory)
    files = [path for path in root.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def test_seed_0_is_the_checkpoint_of_the_goldens(tiny_checkpoint: str) -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))
    assert digests(tiny_checkpoint) == manifest["files"]


def test_another_seed_is_another_model_of_the_same_files(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    tiny.build(str(tmp_path), seed=1)
    ours, others = digests(tiny_checkpoint), digests(str(tmp_path))
    assert ours.keys() == others.keys()
    differing = {name for name in ours if ours[name] != others[name]}
    assert {Path(name).suffix for name in differing} == {".safetensors", ".wav", ".onnx"}


def test_without_a_talker_the_rest_is_the_same(tiny_checkpoint: str, tmp_path: Path) -> None:
    tiny.build_text(str(tmp_path))
    whole = digests(tiny_checkpoint)
    assert digests(str(tmp_path)) == {
        name: digest for name, digest in whole.items() if not name.startswith("talker/")
    }
