"""Log-probabilities in OpenAI's format, heard by the openai package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_core.specs import ModelInfo
from omni_core.types import Finished, TextDelta, TokenLogprob, TopLogprob, Usage

SMILE = "🙂".encode()
ASKED = {"logprobs": True, "top_logprobs": 2}


def token(number: int, spelling: bytes, logprob: float) -> TokenLogprob:
    """A token with an end token as the other one in its place."""
    mine = TopLogprob(token_id=number, spelling=spelling, logprob=logprob)
    end = TopLogprob(token_id=0, spelling=b"<|im_end|>", logprob=-2.5)
    return TokenLogprob(token_id=number, spelling=spelling, logprob=logprob, top=(mine, end))


TOKENS = (token(1, b"Hi ", -0.25), token(2, SMILE[:2], -0.5), token(3, SMILE[2:], -0.0625))


def speak(request: Any) -> list[Any]:
    """Text before its tokens are certain, a thought, and tokens after their text."""
    return [
        TextDelta(
            text="Hm.", token_ids=(9,), channel="reasoning", logprobs=(token(9, b"Hm.", -1),)
        ),
        TextDelta(text="Hi ", token_ids=(1,), logprobs=TOKENS[:1]),
        TextDelta(text="🙂", token_ids=(2, 3)),
        TextDelta(text="", logprobs=TOKENS[1:]),
        Finished(finish_reason="stop", usage=Usage(prompt_tokens=1, text_tokens=5)),
    ]


@pytest.fixture(autouse=True)
def knowing(pipeline: Any) -> None:
    """A pipeline that can tell."""
    pipeline.script = speak
    pipeline.info = replace(pipeline.info, logprobs=True)


def check(content: list[Any]) -> None:
    assert [entry.token for entry in content] == ["Hi ", "\ufffd", "\ufffd\ufffd"]
    assert bytes(b for entry in content for b in entry.bytes) == b"Hi " + SMILE
    assert [entry.logprob for entry in content] == [-0.25, -0.5, -0.0625]
    for entry in content:
        mine, end = entry.top_logprobs
        assert (mine.token, mine.bytes, mine.logprob) == (entry.token, entry.bytes, entry.logprob)
        assert (end.token, bytes(end.bytes), end.logprob) == ("<|im_end|>", b"<|im_end|>", -2.5)


async def test_a_whole_reply(live: Any, kit: Any) -> None:
    reply = await live.openai.chat.completions.create(**kit.hello(), **ASKED)
    check(reply.choices[0].logprobs.content)
    assert reply.choices[0].logprobs.refusal is None
    assert live.pipeline.requests[-1].params.sampling.logprobs == 2


async def test_a_streamed_reply_as_the_package_adds_it_up(live: Any, kit: Any) -> None:
    async with live.openai.chat.completions.stream(**kit.hello(), **ASKED) as stream:
        final = await stream.get_final_completion()
    check(final.choices[0].logprobs.content)
    assert final.choices[0].message.content == "Hi 🙂"


async def test_chunks_carry_what_is_certain_with_them(live: Any, kit: Any) -> None:
    stream = await live.openai.chat.completions.create(**kit.hello(), **ASKED, stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    told = [(c.delta.content, c.logprobs and len(c.logprobs.content)) for c in choices]
    assert told == [("", None), (None, None), ("Hi ", 1), ("🙂", None), ("", 2), (None, None)]


async def test_a_transcript_has_them_too(live: Any, kit: Any) -> None:
    def sing(request: Any) -> list[Any]:
        *said, finished = speak(request)
        return [*said, kit.sound(0, 480), finished]

    live.pipeline.script = sing
    body = {**kit.hello(), **ASKED, "modalities": ["text", "audio"]}
    reply = await live.openai.chat.completions.create(**body)
    assert reply.choices[0].message.audio.transcript == "Hi 🙂"
    check(reply.choices[0].logprobs.content)


async def test_the_chosen_token_alone_and_none_at_all(local: Any) -> None:
    for body, asked in [({"logprobs": True}, 0), ({"logprobs": False}, None), ({}, None)]:
        reply = (await local.chat(**body)).json()
        assert local.pipeline.requests[-1].params.sampling.logprobs == asked
        assert (reply["choices"][0]["logprobs"] is None) == (asked is None)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"top_logprobs": 3}, "top_logprobs", "needs 'logprobs': true"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs", "needs 'logprobs': true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "0"),
        ({"logprobs": 5}, "logprobs", "boolean"),
    ],
)
async def test_refused_by_name(local: Any, body: dict[str, Any], param: str, words: str) -> None:
    error = await local.refused(400, **body)
    assert error["param"] == param
    assert words in error["message"]


async def test_refused_where_the_pipeline_cannot_tell(local: Any) -> None:
    local.pipeline.info = ModelInfo(context_length=2048)
    error = await local.refused(400, logprobs=True)
    assert (error["param"], error["code"]) == ("logprobs", "unsupported_parameter")
