"""Functions of a session: the protocol's flat `tools` to `omni_core.types.ToolUse`.

Knows both ways to write a function. What functions may be is `omni_server.openai.tools`'s.
"""

from __future__ import annotations

from typing import Any

from omni_core.errors import RequestError
from omni_core.specs import ModelInfo
from omni_core.types import ToolUse
from omni_server.openai.tools import tool_use
from omni_server.realtime.items import Json
from omni_server.realtime.settings import Answering, refuse
from omni_server.schema.chat import ChatBody
from omni_server.schema.decode import convert_field


def to_tool_use(settings: Answering, info: ModelInfo, path: str) -> ToolUse | None:
    """The functions that answers may call; RequestError names the field below `path`."""
    if not info.tools and (settings.tools or settings.tool_choice not in ("none", "auto")):
        raise refuse(f"{path}.tools", "is not supported: the served model calls no functions")
    body: Json = {
        "messages": [],
        "tools": [_nested(tool, f"{path}.tools[{i}]") for i, tool in enumerate(settings.tools)],
        "tool_choice": _choice(settings.tool_choice),
        "parallel_tool_calls": settings.parallel_tool_calls,
    }
    try:
        return tool_use(convert_field(body, ChatBody, ""))
    except RequestError as error:
        where = (error.param or "").replace(".function.", ".").removesuffix(".function")
        message = error.message.replace(error.param or "\0", f"{path}.{where}")
        raise RequestError(message, param=f"{path}.{where}", code=error.code) from error


def _nested(tool: Json, path: str) -> Json:
    if tool.get("type", "function") != "function":
        raise refuse(f"{path}.type", "must be function: there are no other tools here")
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _choice(asked: str | Json) -> Any:
    if isinstance(asked, str) or "function" in asked or asked.get("type") != "function":
        return asked
    return {"type": "function", "function": {"name": asked.get("name")}}
