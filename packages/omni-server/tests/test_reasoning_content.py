"""Reasoning reaches clients as `reasoning_content`, beside the answer and never inside it."""

from __future__ import annotations

from typing import Any

from omni_core.specs import ModelInfo
from omni_core.types import Finished, TextDelta, Usage

USAGE = Usage(prompt_tokens=3, text_tokens=5, reasoning_tokens=4)


def think(request: Any) -> list[Any]:
    return [
        TextDelta(text="Let me ", channel="reasoning"),
        TextDelta(text="see.", channel="reasoning"),
        TextDelta(text="", token_ids=(7,), channel="reasoning"),
        TextDelta(text="Four."),
        Finished(finish_reason="stop", usage=USAGE),
    ]


async def test_a_whole_reply_has_both_apart(live: Any) -> None:
    live.pipeline.script = think
    reply = (await live.chat()).json()
    message = reply["choices"][0]["message"]
    assert message["reasoning_content"] == "Let me see."
    assert message["content"] == "Four."
    details = reply["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 4
    assert reply["usage"]["completion_tokens"] == 5, "reasoning is part of the text, not on top"


async def test_a_reply_without_reasoning_has_no_such_field(live: Any) -> None:
    reply = (await live.chat()).json()
    assert "reasoning_content" not in reply["choices"][0]["message"]


async def test_the_openai_package_streams_both_apart(live: Any, kit: Any) -> None:
    live.pipeline.script = think
    stream = await live.openai.chat.completions.create(**kit.hello(), stream=True)
    thoughts, answer, order = "", "", []
    async for chunk in stream:
        delta = chunk.choices[0].delta
        if thought := getattr(delta, "reasoning_content", None):
            thoughts += thought
            order.append("thought")
        if delta.content:
            answer += delta.content
            order.append("answer")
    assert (thoughts, answer) == ("Let me see.", "Four.")
    assert order == ["thought", "thought", "answer"]


async def test_audio_of_a_checkpoint_that_cannot_speak_is_refused_with_the_reason(
    live: Any,
) -> None:
    live.pipeline.modalities = ("text",)
    live.pipeline.info = ModelInfo(
        context_length=8, refused_modalities={"audio": "this checkpoint has no voice"}
    )
    error = await live.refused(400, modalities=["text", "audio"])
    assert error["param"] == "modalities"
    assert "this checkpoint has no voice" in error["message"]
