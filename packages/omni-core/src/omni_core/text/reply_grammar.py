"""The grammar of a whole reply: thought, answer and calls of functions, as asked for.

Knows the markup around thoughts and calls, and llguidance's Lark dialect. Compiles nothing.
"""

from __future__ import annotations

import json
from typing import Any, Final

from omni_core.engine.grammar import WHITESPACE
from omni_core.errors import RequestError
from omni_core.text import calls, reasoning
from omni_core.types import Grammar, Tool, ToolUse

_TEXT: Final = r"TEXT: /(.|\n)*/"


def reply_grammar(asked: Grammar | None, use: ToolUse | None, *, opened: bool) -> Grammar | None:
    """What the reply is held to; None for nothing. `asked` is the grammar of the answer, which
    calls may stand for; `opened` says that the prompt has begun a thought, which is free text.

    RequestError for a grammar that cannot be combined so.
    """
    forced = use is not None and (use.required or use.only is not None)
    held = use is not None and (not use.parallel or any(tool.strict for tool in use.tools))
    if use is None or not (forced or held or asked):
        return asked if asked is None or not opened else _combined(asked, [], opened)
    if forced:
        return _combined(None, _calls(use), opened)
    if asked is not None:
        return _combined(asked, _calls(use), opened)
    return _free_text_and_calls(use, opened)


def _combined(answer: Grammar | None, calls_rules: list[str], opened: bool) -> Grammar:
    """One of answer and calls, after the thought."""
    choices, rules = [], list(calls_rules)
    if calls_rules:
        choices.append("calls")
    if answer is not None:
        choices.append("answer")
        rules.append(f"answer: {_answer(answer)}")
    param = answer.param if answer is not None else "tools"
    return _grammar(" | ".join(choices), rules, opened, param)


def _free_text_and_calls(use: ToolUse, opened: bool) -> Grammar:
    """Text that is free until it opens a call."""
    body = f"body: {_either(use, calls.OPEN)}"
    lead = f"lead[lazy]: TEXT {json.dumps(calls.OPEN)}"
    start = "(lead body)* TEXT" if use.parallel else "TEXT | lead body"
    return _grammar(start, [_TEXT, lead, body], opened, "tools")


def _grammar(reply: str, rules: list[str], opened: bool, param: str | None) -> Grammar:
    start = ["start: reply"]
    if opened:
        thought = rf"thought[lazy]: /(.|\n)*/ {json.dumps(reasoning.CLOSE)}"
        start = [r"start: thought /\n{0,2}/ reply", thought]
    text = "\n".join([*start, f"reply: {reply}", *rules]) + "\n"
    return Grammar(kind="lark", text=text, param=param)


def _answer(asked: Grammar) -> str:
    if asked.kind != "json_schema":
        raise RequestError(
            "a Lark grammar cannot be combined with tools or with a model that thinks first; "
            "ask for a JSON schema",
            param=asked.param,
        )
    try:
        schema = json.loads(asked.text)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"'{asked.param}' is not JSON: {exc}", param=asked.param) from exc
    return _json(schema)


def _calls(use: ToolUse) -> list[str]:
    several = r'calls: call ("\n" call)*' if use.parallel else "calls: call"
    return [several, f"call: {_either(use, '')}"]


def _either(use: ToolUse, written: str) -> str:
    """A call of one of the functions, of which `written` is there already."""
    tools = [tool for tool in use.tools if use.only in (None, tool.name)]
    return " | ".join(_call(tool, written) for tool in tools)


def _call(tool: Tool, written: str) -> str:
    head = f'{calls.OPEN}\n{{"name": {json.dumps(tool.name)}, "arguments": '
    tail = f"}}\n{calls.CLOSE}"
    schema = {"type": "object", **tool.parameters}
    arguments = _json(schema, lenient=not tool.strict)
    return f"{json.dumps(head.removeprefix(written))} {arguments} {json.dumps(tail)}"


def _json(schema: Any, *, lenient: bool = False) -> str:
    """JSON that satisfies a schema; `lenient` ignores keywords that cannot be enforced."""
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options})
