"""Functions: how requests name them, and how calls are told, whole and streamed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from omni_core.types import Finished, TextDelta, TextPart, ToolCallDelta, Usage

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
TIME = {"type": "function", "function": {"name": "time", "description": "Now.", "strict": True}}
DONE = Finished(finish_reason="tool_calls", usage=Usage(prompt_tokens=9, text_tokens=20))


def calls_two(request: Any) -> list[Any]:
    return [
        TextDelta(text="Let me see."),
        ToolCallDelta(index=0, call_id="call_a", name="weather", arguments='{"ci'),
        ToolCallDelta(index=0, call_id="call_a", arguments='ty": "Rome"}'),
        ToolCallDelta(index=1, call_id="call_b", name="time", arguments="{}"),
        DONE,
    ]


@pytest.fixture
def able(pipeline: Any) -> Any:
    """The pipeline of `live` and `local`, which knows of calls."""
    pipeline.info = dataclasses.replace(pipeline.info, tools=True, grammars=True)
    pipeline.script = calls_two
    return pipeline


async def test_calls_of_a_whole_reply(local: Any, able: Any) -> None:
    reply = (await local.chat(tools=[WEATHER, TIME])).json()
    [choice] = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert choice["message"]["tool_calls"] == [
        {
            "id": "call_a",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
        },
        {"id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    able.script = lambda request: calls_two(request)[1:]
    [choice] = (await local.chat(tools=[WEATHER])).json()["choices"]
    assert choice["message"]["content"] is None


async def test_streamed_calls_add_up_for_the_openai_package(live: Any, able: Any, kit: Any) -> None:
    async with live.openai.chat.completions.stream(
        model=kit.MODEL, messages=kit.hello()["messages"], tools=[STRICT, TIME]
    ) as stream:
        events = [event async for event in stream]
        [choice] = (await stream.get_final_completion()).choices
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "weather", '{"city": "Rome"}'),
        (1, "time", "{}"),
    ]
    assert [call.id for call in choice.message.tool_calls] == ["call_a", "call_b"]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."


async def test_what_the_pipeline_is_told(local: Any, able: Any) -> None:
    for choice, parallel in (
        (None, None), ("auto", False), ("required", True),
        ({"type": "function", "function": {"name": "time"}}, None),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "time"}}]}}, None),
        ("none", None),
    ):  # fmt: skip
        body = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": parallel}
        assert (await local.chat(**body)).status_code == 200
    auto, one, must, named, allowed, none = (request.tool_use for request in able.requests)
    assert [tool.name for tool in auto.tools] == ["weather", "time"]
    assert [tool.strict for tool in auto.tools] == [False, True]
    assert auto.tools[0].parameters == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert (auto.required, auto.parallel) == (False, True)
    assert (one.required, one.parallel) == (False, False)
    assert must.required
    assert (named.required, named.only) == (True, "time")
    assert (allowed.required, [tool.name for tool in allowed.tools]) == (True, ["time"])
    assert none is None


async def test_turns_with_calls_and_results(local: Any, able: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"a": [1]}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "Ada", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "noon"}]},
    ]
    assert (await local.chat(messages=messages, tools=[TIME])).status_code == 200
    system, user, assistant, result = able.requests[0].messages
    assert (system.role, user.name) == ("system", "Ada")
    [said] = assistant.tool_calls
    assert (said.call_id, said.name, said.arguments) == ("c1", "time", {"a": [1]})
    assert assistant.content == ()
    assert (result.role, result.tool_call_id) == ("tool", "c1")
    assert result.content == (TextPart(text="noon"),)


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


def turns(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}, *messages]}


def called(**call: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}", **call.pop("function", {})}
    whole = {"id": "c", "type": "function", "function": function, **call}
    return {"role": "assistant", "content": None, "tool_calls": [whole]}


WRONG = [
    # body, param
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].type"),
    ({"tools": [WEATHER] * 129}, "tools"),
    ({"tools": [WEATHER, TIME, WEATHER]}, "tools[2].function.name"),
    (tool(name="no spaces"), "tools[0].function.name"),
    (tool(name=None), "tools[0].function.name"),
    (tool(parameters={"type": "array"}), "tools[0].function.parameters.type"),
    (tool(parameters=[]), "tools[0].function.parameters"),
    (tool(parameters={"title": "x" * 70_000}), "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": 5}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
    (
        {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice.function.name",
    ),
    ({"tools": [TIME], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    (turns({"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    (turns({"role": "tool", "tool_call_id": "c", "content": "x"}), "messages[1].tool_call_id"),
    (turns(called(), {"role": "tool", "tool_call_id": "c"}), "messages[2].content"),
    (turns(called(type="custom")), "messages[1].tool_calls[0].type"),
    (
        turns(called(function={"arguments": "[1]"})),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        turns(called(function={"arguments": "{"})),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        turns({**called(), "role": "user", "content": "x"}),
        "messages[1].tool_calls",
    ),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"title": "x" * 70_000}}}},
        "response_format.json_schema.schema",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda value: str(value)[:50])
async def test_refused_by_name(local: Any, able: Any, body: Any, param: str) -> None:
    error = await local.refused(400, **body)
    assert error["param"] == param
    assert not able.requests


async def test_formats_become_grammars(local: Any, able: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"name": "x", "schema": schema, "strict": True}
    for asked in ({"type": "text"}, {"type": "json_object"},
                  {"type": "json_schema", "json_schema": named}):  # fmt: skip
        assert (await local.chat(response_format=asked)).status_code == 200
    free, anything, exact = (request.params.sampling.grammar for request in able.requests)
    assert free is None
    assert json.loads(anything.text) == {"type": "object"}
    assert json.loads(exact.text) == schema
    assert exact.param == "response_format.json_schema.schema"
