"""One live server on a tiny checkpoint for all clients, as operators run it: behind an API key and
a rate limit. Some clients cannot ask for greedy replies, so that is the checkpoint's default."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from asked import (
    BRIEF,
    KEY,
    MODEL,
    OTHER_KEY,
    QUESTION,
    RATE_LIMIT,
    READING,
    REQUEST_DEADLINE_S,
    VOICE,
)
from families import FAMILY
from in_process import Told, answers, question
from omni_core.types import Request, RequestParams, SamplingParams


@pytest.fixture(scope="session")
def greedy_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny checkpoint that says the same each time, and not for long."""
    directory: Path = tmp_path_factory.mktemp("greedy")
    FAMILY.build(str(directory))
    defaults = directory / "generation_config.json"
    greedy = {"temperature": 0, "max_new_tokens": 64, "talker_temperature": 0}
    known = json.loads(defaults.read_text()) if defaults.is_file() else {}
    defaults.write_text(json.dumps({**known, **greedy}))
    return str(directory)


@pytest.fixture(scope="session")
def references(greedy_checkpoint: str) -> dict[str, Told]:
    """What the pipeline itself makes of BRIEF ("chat") and of READING ("speech")."""
    speaker = SamplingParams(temperature=0, ignore_eos=True, max_tokens=FAMILY.brief)
    spoken: dict[str, Any] = {"voice": VOICE, "stage_params": {FAMILY.speaker: speaker}}
    sampling = SamplingParams(temperature=0, max_tokens=BRIEF["max_tokens"], seed=1, **FAMILY.ends)
    both = RequestParams(modalities=("text", "audio"), sampling=sampling, **spoken)
    read = RequestParams(modalities=("audio",), sampling=SamplingParams(seed=1), **spoken)
    requests = (
        question(QUESTION[0]["content"], both),
        Request(read_aloud=READING["input"], params=read),
    )
    chat, speech = answers(greedy_checkpoint, requests)
    assert chat.rates == speech.rates == {FAMILY.rate}
    return {"chat": chat, "speech": speech}


@pytest.fixture(scope="session")
def served(
    live_server: Callable[..., AbstractContextManager[httpx.Client]], greedy_checkpoint: str
) -> Iterator[str]:
    """The address of the server, without a path."""
    keys = ("--api-key", KEY, "--api-key", OTHER_KEY, "--rate-limit", str(RATE_LIMIT))
    with live_server(greedy_checkpoint, "--served-model-name", MODEL, *keys) as http:
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
