"""What the cross-package tests share: one tiny checkpoint for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

collect_ignore = ["outsider"]  # a project of its own, for `nox -s outsider`


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of the checkpoint the stored references were made with."""
    from omni_qwen3.tiny import build  # here, so that `nox -s layers` runs without our packages

    directory: Path = tmp_path_factory.mktemp("tiny")
    build(str(directory), seed=0)
    return str(directory)
