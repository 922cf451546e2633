"""Fixtures of the omni-ming tests."""

from __future__ import annotations

import pytest

from omni_ming import tiny


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a freshly written tiny checkpoint, seed 0: the one behind `golden/`."""
    directory = str(tmp_path_factory.mktemp("checkpoint") / "tiny-ming")
    tiny.build(directory)
    return directory
