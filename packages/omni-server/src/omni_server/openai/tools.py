"""Functions a model may call: OpenAI's `tools` and `tool_choice` to `omni_core.types.ToolUse`.

Knows how requests write them, and which of them contradict each other. Knows no markup.
"""

from __future__ import annotations

import json
import re
from typing import Final

from omni_core.errors import RequestError
from omni_core.types import Tool, ToolUse
from omni_server.schema.chat import ChatBody, FunctionReference, ToolChoice, ToolDefinition
from omni_server.schema.decode import require_shallow

MAX_TOOLS: Final = 128
MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Of one JSON schema; all that a reply is held to may have a few times as much."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MODES: Final = ("none", "auto", "required")


def tool_use(body: ChatBody) -> ToolUse | None:
    """The functions that the model is shown, and how it may call them; None for none."""
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"'tools' has more than {MAX_TOOLS} functions.", param="tools")
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools[{index}].function.name"
            raise RequestError(f"'{param}': there are two functions {name!r}.", param=param)
    parallel = body.parallel_tool_calls is not False
    if not tools:
        _refuse_choice(body.tool_choice)
        return None
    match body.tool_choice:
        case None | "auto":
            return ToolUse(tools=tuple(tools), parallel=parallel)
        case "none":
            return None
        case "required":
            return ToolUse(tools=tuple(tools), parallel=parallel, required=True)
        case str(mode):
            raise _unknown_choice(mode, "tool_choice")
        case choice:
            return _chosen(choice, tools, parallel)


def schema_text(schema: dict[str, object], path: str) -> str:
    """A JSON schema as text, within the limits."""
    require_shallow(schema, path)
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise RequestError(f"'{path}' has more than {MAX_SCHEMA_BYTES} bytes.", param=path)
    return text


def _tool(tool: ToolDefinition, path: str) -> Tool:
    if tool.type != "function" or tool.function is None:
        raise RequestError(
            f"'{path}.type': tools of this server are functions; write "
            '{"type": "function", "function": {...}}.',
            param=f"{path}.type",
            code="unsupported_value",
        )
    function = tool.function
    if not _NAME.fullmatch(function.name):
        raise RequestError(
            f"'{path}.function.name': up to 64 letters, digits, underscores and dashes.",
            param=f"{path}.function.name",
        )
    parameters = function.parameters or {}
    param = f"{path}.function.parameters"
    if parameters.get("type", "object") != "object":
        raise RequestError(f"'{param}.type' must be \"object\".", param=f"{param}.type")
    schema_text(parameters, param)
    return Tool(
        name=function.name,
        description=function.description,
        parameters=parameters,
        strict=bool(function.strict),
    )


def _refuse_choice(choice: str | ToolChoice | None) -> None:
    """Without functions there is nothing to choose."""
    if isinstance(choice, str) and choice not in _MODES:
        raise _unknown_choice(choice, "tool_choice")
    if choice not in (None, "none", "auto"):
        raise RequestError("'tool_choice' needs 'tools' to choose from.", param="tool_choice")


def _chosen(choice: ToolChoice, tools: list[Tool], parallel: bool) -> ToolUse:
    if choice.type == "function" and choice.function is not None:
        name = _known(choice.function, tools, "tool_choice.function.name")
        return ToolUse(tools=tuple(tools), parallel=parallel, required=True, only=name)
    allowed = choice.allowed_tools
    if choice.type != "allowed_tools" or allowed is None:
        raise _unknown_choice(choice.type, "tool_choice.type")
    if allowed.mode not in ("auto", "required"):
        raise _unknown_choice(allowed.mode, "tool_choice.allowed_tools.mode")
    path = "tool_choice.allowed_tools.tools"
    names = [
        _known(tool.function, tools, f"{path}[{index}].function.name")
        for index, tool in enumerate(allowed.tools)
    ]
    if not names:
        raise RequestError(f"'{path}' is empty; use \"none\" to allow no function.", param=path)
    kept = tuple(tool for tool in tools if tool.name in names)
    return ToolUse(tools=kept, parallel=parallel, required=allowed.mode == "required")


def _known(function: FunctionReference, tools: list[Tool], path: str) -> str:
    names = [tool.name for tool in tools]
    if function.name not in names:
        raise RequestError(
            f"'{path}': {function.name!r} is not among the tools: {', '.join(names)}.", param=path
        )
    return function.name


def _unknown_choice(choice: str, path: str) -> RequestError:
    return RequestError(
        f"'{path}': {choice!r} is not one of {', '.join(_MODES)}, a function of 'tools' or "
        "allowed_tools.",
        param=path,
    )
