"""Log-probabilities over HTTP are those of transformers' own logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from transformers import AutoTokenizer
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeForConditionalGeneration,
)

MODEL = "tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "She sells sea shells."}]
NEW_TOKENS = 8
TOP = 20
TOLERANCE = 1e-4
GREEDY: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0}


@pytest.fixture(scope="module")
def client(
    tiny_checkpoint: str, live_server: Callable[..., AbstractContextManager[httpx.Client]]
) -> Iterator[OpenAI]:
    arguments = ("--variant", "text", "--served-model-name", MODEL)
    with live_server(tiny_checkpoint, *arguments) as http:
        yield OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: str, tokenizer: Any) -> tuple[list[int], torch.Tensor]:
    """A greedy reply by transformers, and log-probabilities (tokens, vocabulary) at its places."""
    load = Qwen3OmniMoeForConditionalGeneration.from_pretrained
    thinker = load(tiny_checkpoint, dtype=torch.float32).eval().thinker
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text)["input_ids"]
    places = []
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            logits = thinker(input_ids=torch.tensor([ids])).logits[0, -1]
            places.append(logits.float().log_softmax(-1))
            ids = [*ids, int(logits.argmax())]
    return ids[-NEW_TOKENS:], torch.stack(places)


@pytest.mark.parametrize("stream", [False, True])
def test_they_equal_those_of_transformers(
    client: OpenAI, tokenizer: Any, expected: tuple[list[int], torch.Tensor], stream: bool
) -> None:
    ids, logprobs = expected
    assert not set(ids) & set(tokenizer.all_special_ids), "the reply ends before it can be compared"
    asked = {**GREEDY, "max_tokens": NEW_TOKENS, "logprobs": True, "top_logprobs": TOP}
    if stream:
        chunks = client.chat.completions.create(**asked, stream=True)
        told = [entry for chunk in chunks for entry in content_of(chunk)]
    else:
        told = content_of(client.chat.completions.create(**asked))
    assert [spelled(tokenizer, i) for i in ids] == [entry.token for entry in told]
    for place, (token_id, entry) in enumerate(zip(ids, told, strict=True)):
        assert entry.logprob == pytest.approx(float(logprobs[place, token_id]), abs=TOLERANCE)
        best = logprobs[place].topk(TOP)
        assert [other.logprob for other in entry.top_logprobs] == pytest.approx(
            best.values.tolist(), abs=TOLERANCE
        )
        names = {spelled(tokenizer, i) for i in best.indices.tolist()}
        assert len(names & {other.token for other in entry.top_logprobs}) >= len(names) - 1


def test_those_of_a_stop_string_are_left_out(client: OpenAI) -> None:
    create = client.chat.completions.create
    asked = {**GREEDY, "max_tokens": NEW_TOKENS, "logprobs": True}
    whole = content_of(create(**asked))
    words = [entry.token for entry in whole]
    place = next(i for i in range(1, NEW_TOKENS) if words[i] not in "".join(words[:i]))
    cut = create(**asked, stop=words[place])
    assert cut.choices[0].finish_reason == "stop"
    assert [entry.logprob for entry in content_of(cut)] == pytest.approx(
        [entry.logprob for entry in whole[:place]], abs=TOLERANCE
    )
    assert cut.choices[0].message.content == "".join(words[:place])


def content_of(reply: Any) -> list[Any]:
    return [
        entry
        for choice in reply.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content
    ]


def spelled(tokenizer: Any, token_id: int) -> str:
    return str(tokenizer.decode([token_id]))
