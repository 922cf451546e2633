"""One parrot for all tests: loading it is what takes time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omni_parrot.checkpoint import Parrot, write
from server import serving


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("models") / "parrot"
    write(str(directory), Parrot())
    return str(directory)


@pytest.fixture(scope="session")
def url(checkpoint: str) -> Iterator[str]:
    with serving(checkpoint) as url:
        yield url
