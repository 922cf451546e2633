"""POST /v1/completions: what the pipeline is asked, what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from itertools import chain

import httpx
import msgspec
import pytest
from openai.types import Completion
from openai.types.completion_create_params import CompletionCreateParamsStreaming

from omni_core.errors import ContextLengthError, StageDiedError
from omni_core.types import Finished, TextDelta, TokenLogprob, TopLogprob, Usage
from omni_server.openai.completions_call import DEFAULT_MAX_TOKENS, MAX_CHARACTERS, MAX_COMPLETIONS
from omni_server.schema.completions import CompletionBody
from omni_server.settings import Settings

PATH = "/v1/completions"
WITHIN_S = 5.0


@pytest.fixture
def pipeline(pipeline):
    pipeline.info = replace(pipeline.info, logprobs=True)
    return pipeline


async def complete(live, **body):
    return await live.http.post(PATH, json={"prompt": "Once", **body})


async def refused(live, status=400, **body):
    response = await complete(live, **body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def choices_of(response):
    return Completion.model_validate(response.json(), strict=True).choices


def echo(request):
    """A reply that tells its prompt and its seed."""
    said = f"<{request.prompt}:{request.params.sampling.seed}>"
    prompt_tokens = len(request.prompt)
    usage = Usage(prompt_tokens=prompt_tokens, text_tokens=2)
    return [TextDelta(text=said), Finished(finish_reason="length", usage=usage)]


async def test_a_prompt_goes_to_the_pipeline_as_it_is(local, kit):
    response = await complete(local, model=kit.MODEL)
    [choice] = choices_of(response)
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("Héllo there", "stop", None)
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert response.headers["x-request-id"] == body["id"]
    assert body["usage"]["prompt_tokens"] == 11
    [request] = local.pipeline.requests
    assert (request.prompt, request.messages, request.params.modalities) == ("Once", (), ("text",))
    assert request.params.sampling.max_tokens == DEFAULT_MAX_TOKENS == 16


async def test_sampling_is_the_callers(local):
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": -0.3, "logit_bias": {"5": 1}, "seed": 3,
        "max_tokens": 40, "min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [9],
        "ignore_eos": True, "logprobs": 2,
    }  # fmt: skip
    await complete(local, **body, stage_params={"thinker": {"top_k": 1}}, timeout=5, user="ann")
    [request] = local.pipeline.requests
    said = msgspec.to_builtins(request.params.sampling, str_keys=True)
    assert said == {**body, "stop": ("a", "b"), "stop_token_ids": (9,)}
    assert request.params.stage_params["thinker"].top_k == 1
    assert request.timeout_s == 5
    assert request.client.endswith("ann")


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
async def test_prompts_come_in_four_shapes(local, prompt, asked):
    await complete(local, prompt=prompt)
    assert [request.prompt for request in local.pipeline.requests] == asked


async def test_choices_of_prompts_come_in_their_order_and_the_prompt_counts_once(local):
    local.pipeline.script = echo
    response = await complete(local, prompt=["ab", "cde"], n=2, seed=5, best_of=2)
    choices = choices_of(response)
    assert [c.text for c in choices] == ["<ab:5>", "<ab:6>", "<cde:5>", "<cde:6>"]
    assert [c.index for c in choices] == [0, 1, 2, 3]
    assert {c.finish_reason for c in choices} == {"length"}
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 8, 13)


async def test_usage_in_the_log_is_that_of_the_reply(kit):
    seen = []
    pipeline = kit.FakePipeline(echo)
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL), seen.append)
    await complete(live, prompt=["ab", "cde"], n=2)
    assert (seen[0].usage.prompt_tokens, seen[0].usage.text_tokens) == (5, 8)
    assert seen[0].route == PATH


async def test_a_stream_adds_up_to_the_whole(live, kit):
    """By the openai package, which reads every event."""
    stream = await live.openai.completions.create(
        model=kit.MODEL, prompt=["a", "b"], stream=True, echo=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    *parts, last = chunks
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (22, 24)
    assert {chunk.usage for chunk in parts} == {None}
    assert len({chunk.id for chunk in chunks}) == 1
    for index, prompt in enumerate("ab"):
        mine = [c.choices[0] for c in parts if c.choices[0].index == index]
        assert "".join(part.text for part in mine) == prompt + "Héllo there"
        assert [part.finish_reason for part in mine] == [None] * (len(mine) - 1) + ["stop"]
    whole = await live.openai.completions.create(model=kit.MODEL, prompt=["a", "b"], echo=True)
    assert [choice.text for choice in whole.choices] == ["aHéllo there", "bHéllo there"]


def logprob(spelling, value, *others):
    top = tuple(TopLogprob(token_id=i, spelling=s, logprob=v) for i, (s, v) in enumerate(others))
    return TokenLogprob(token_id=9, spelling=spelling, logprob=value, top=top)


TOKENS = (
    logprob(b"A\xc3", -0.1, (b"A\xc3", -0.1), (b"B", -2.0)),
    logprob(b"\xa9", -0.2, (b"B", -0.1), (b"C", -0.15)),
    logprob(b"!", -0.3, (b"!", -0.3), (b"?", -1.0)),
)


async def test_logprobs_are_lists_with_the_place_of_each_token(local):
    done = Finished(finish_reason="stop", usage=Usage(prompt_tokens=1, text_tokens=3))
    local.pipeline.script = lambda request: [
        TextDelta(text="A", logprobs=()),
        TextDelta(text="é", logprobs=TOKENS[:2]),
        TextDelta(text="!", logprobs=TOKENS[2:]),
        done,
    ]
    [choice] = choices_of(await complete(local, logprobs=2))
    found = choice.logprobs
    assert found.tokens == ["bytes:A\\xc3".replace("A", "\\x41"), "bytes:\\xa9", "!"]
    assert found.token_logprobs == [-0.1, -0.2, -0.3]
    assert found.text_offset == [0, 1, 2]
    assert [len(top) for top in found.top_logprobs] == [2, 3, 2], "the token's own is among them"
    assert found.top_logprobs[1]["bytes:\\xa9"] == -0.2
    streamed = (await complete(local, logprobs=2, stream=True)).text
    parts = [json.loads(line[6:]) for line in streamed.split("\n\n")[:-2]]
    lists = [part["choices"][0]["logprobs"] for part in parts]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert list(chain.from_iterable(part[name] for part in lists)) == getattr(found, name)


BAD = [
    ({"prompt": None}, "prompt", None),
    ({"prompt": ""}, "prompt", None),
    ({"prompt": []}, "prompt", None),
    ({"prompt": ["a", ""]}, "prompt[1]", None),
    ({"prompt": [[1], []]}, "prompt[1]", None),
    ({"prompt": ["a", 1]}, "prompt", None),
    ({"prompt": [1, [2]]}, "prompt", None),
    ({"prompt": [-1]}, "prompt[0]", None),
    ({"prompt": [1.5]}, "prompt[0]", None),
    ({"prompt": [True]}, "prompt[0]", None),
    ({"prompt": {"text": "a"}}, "prompt", None),
    ({"prompt": [1] * 2048}, "prompt", "context_length_exceeded"),
    ({"prompt": ["a"] * (MAX_COMPLETIONS + 1)}, "prompt", None),
    ({"prompt": "a" * (MAX_CHARACTERS // 32 + 1), "n": 32}, "n", None),
    ({"prompt": ["a"] * 8, "n": 8}, "n", None),
    ({"n": 0}, "n", None),
    ({"n": 33}, "n", None),
    ({"best_of": 3}, "best_of", "unsupported_parameter"),
    ({"n": 2, "best_of": 1}, "best_of", "unsupported_parameter"),
    ({"suffix": "the end"}, "suffix", "unsupported_parameter"),
    ({"echo": True, "logprobs": 0}, "echo", "unsupported_parameter"),
    ({"echo": True, "prompt": [1]}, "echo", "unsupported_parameter"),
    ({"echo": "yes"}, "echo", None),
    ({"logprobs": 6}, "logprobs", None),
    ({"logprobs": True}, "logprobs", None),
    ({"max_tokens": 0}, "max_tokens", None),
    ({"max_tokens": 2049}, "max_tokens", "context_length_exceeded"),
    ({"temperature": -1}, "temperature", None),
    ({"stop": [""]}, "stop", None),
    ({"stream_options": {}}, "stream_options", None),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "unsupported_parameter",
    ),
    ({"stage_params": {"writer": {}}}, "stage_params.writer", "unknown_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"audio": {"voice": "Ethan"}}, "audio", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
    ({"timeout": 0}, "timeout", None),
]


@pytest.mark.parametrize(("body", "param", "code"), BAD, ids=lambda v: str(v)[:40])
async def test_what_cannot_be_is_refused_by_name(local, body, param, code):
    error = await refused(local, **body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert not local.pipeline.requests


HARMLESS = {
    "suffix": "", "best_of": 1, "echo": False, "tools": [], "modalities": ["text"],
    "response_format": {"type": "text"}, "n": 1, "unheard_of": 7,
}  # fmt: skip


async def test_what_changes_nothing_is_taken_and_null_equals_absent(local):
    assert (await complete(local, **HARMLESS)).status_code == 200
    names = [n for n in CompletionBody.__struct_fields__ if n != "prompt"]
    assert (await complete(local, **dict.fromkeys(names))).status_code == 200
    first, second = local.pipeline.requests
    assert (first.prompt, first.params) == (second.prompt, second.params)


def test_every_field_of_the_openai_package_is_known():
    known = set(CompletionBody.__struct_fields__)
    assert set(CompletionCreateParamsStreaming.__annotations__) <= known
    for kind in CompletionCreateParamsStreaming.__orig_bases__:
        assert set(kind.__annotations__) <= known


async def test_another_model_and_one_that_completes_nothing(local, kit):
    assert (await refused(local, 404, model="gpt-5"))["code"] == "model_not_found"
    local.pipeline.info = replace(local.pipeline.info, completes_prompts=False)
    error = await refused(local)
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
    assert "/v1/chat/completions" in error["message"]


async def test_the_prompt_at_fault_is_named(local):
    def script(request):
        return [ContextLengthError("too long", param="prompt")] if request.prompt == "b" else []

    local.pipeline.script = script
    assert (await refused(local, prompt=["a", "b"], n=2))["param"] == "prompt[1]"
    assert (await refused(local, prompt="b"))["param"] == "prompt"
    await asyncio.wait_for(local.pipeline.closed.wait(), WITHIN_S)
    assert local.pipeline.running == 0


async def test_a_large_body_is_refused_while_it_is_read(local):
    assert (await refused(local, 413, prompt="x" * (4 * 1024 * 1024)))["code"] is not None
    assert not local.pipeline.requests


async def test_an_error_in_the_middle_is_told_and_breaks_the_stream(live):
    live.pipeline.script = lambda request: [TextDelta(text="Once"), StageDiedError("gone")]
    body = {"prompt": "a", "stream": True}
    text = ""
    async with live.http.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        with contextlib.suppress(httpx.RemoteProtocolError):
            async for piece in response.aiter_text():
                text += piece
            text += "[whole]"
    assert '"error"' in text
    assert "[DONE]" not in text
    assert "[whole]" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all_its_completions(live, stream):
    forever = asyncio.Event()
    live.pipeline.script = lambda request: [TextDelta(text="a"), forever]
    body = {"prompt": ["a", "b"], "stream": stream}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await live.http.post(PATH, json=body)
    async with asyncio.timeout(WITHIN_S):
        while live.pipeline.running:
            await asyncio.sleep(0.01)
    assert len(live.pipeline.requests) == 2
