"""One live server on a tiny checkpoint for all clients, as operators run it: behind an API key and
a rate limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from asked import KEY, MODEL, OTHER_KEY, RATE_LIMIT, REQUEST_DEADLINE_S


@pytest.fixture(scope="session")
def served(
    live_server: Callable[..., AbstractContextManager[httpx.Client]], tiny_checkpoint: str
) -> Iterator[str]:
    """The address of the server, without a path."""
    keys = ("--api-key", KEY, "--api-key", OTHER_KEY, "--rate-limit", str(RATE_LIMIT))
    with live_server(tiny_checkpoint, "--served-model-name", MODEL, *keys) as http:
        yield str(http.base_url).rstrip("/")


@pytest.fixture(scope="session")
def client(served: str) -> Iterator[OpenAI]:
    """The synchronous client, which does not try again by itself."""
    with OpenAI(
        base_url=f"{served}/v1", api_key=KEY, max_retries=0, timeout=REQUEST_DEADLINE_S
    ) as sdk:
        yield sdk


@pytest.fixture
async def async_client(served: str) -> AsyncIterator[AsyncOpenAI]:
    """The asynchronous one."""
    async with AsyncOpenAI(
        base_url=f"{served}/v1", api_key=KEY, max_retries=0, timeout=REQUEST_DEADLINE_S
    ) as sdk:
        yield sdk
