"""Fixtures of the omni-qwen3 tests."""

from __future__ import annotations

import pytest

from omni_qwen3 import tiny


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a freshly written tiny checkpoint, seed 0."""
    directory = str(tmp_path_factory.mktemp("checkpoint") / "tiny-qwen3-omni")
    tiny.build(directory)
    return directory
