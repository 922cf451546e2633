"""Calls in text, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.text.calls import CallParser
from omni_core.types import ToolCallDelta

ARGUMENTS = '{"a": "</tool_call> } \\" 🙂", "b": [{}]}'
CALL = f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>'

CASES = [
    # text, content, calls
    ("plain <b>text</b> ", "plain <b>text</b> ", []),
    (CALL, "", [("f", ARGUMENTS)]),
    (f"Let me see.\n\n{CALL}", "Let me see.", [("f", ARGUMENTS)]),
    (f"{CALL}\n{CALL}", "", [("f", ARGUMENTS), ("f", ARGUMENTS)]),
    (f"{CALL} done", " done", [("f", ARGUMENTS)]),
    (
        '<tool_call>{"arguments": {"a": 1}, "name": "g"}</tool_call>',
        "", [("g", '{"a": 1}')],
    ),
    ('<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}")]),
    ('<tool_call>{"name":"g","arguments":"{\\"a\\": 1}"}</tool_call>', "", [("g", '{"a": 1}')]),
    ("<tool_call>not json</tool_call>!", "<tool_call>not json</tool_call>!", []),
    ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>x', "x", [("f", '{"a": 1')]),
    ('<tool_call>\n{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    (f'<tool_call>{{"name": "f", "arguments": {{}}}}\n{CALL}', "", [("f", "{}"), ("f", ARGUMENTS)]),
    *((f"<tool_call>{body}</tool_call>",) * 2 + ([],) for body in (
        '{"name": "\\ud800", "arguments": {}}',
        '{"arguments": {"b": "\\ud83d"}, "name": "f"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": null}',
    )),
    ("<tool_call", "<tool_call", []),
]  # fmt: skip


def parsed(text: str, cuts: list[int], *, cut: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls of a text that comes in pieces; checks what holds of every delta."""
    ids = map(str, itertools.count())
    parser = CallParser(lambda: next(ids))
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    runs = [run for piece in pieces for run in parser.push(piece)] + parser.flush(cut=cut)
    calls: list[tuple[str, str]] = []
    for run in runs:
        if isinstance(run, ToolCallDelta):
            if run.name is not None:
                calls.append((run.name, ""))
            name, arguments = calls[-1]
            assert (run.index, run.call_id) == (len(calls) - 1, str(len(calls) - 1))
            calls[-1] = (name, arguments + run.arguments)
    assert parser.calls == len(calls)
    return "".join(run for run in runs if isinstance(run, str)), calls


@pytest.mark.parametrize(("text", "content", "calls"), CASES)
def test_calls_are_found_however_text_is_cut(
    text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    for step in (1, 2, 3, 7, len(text)):
        assert parsed(text, list(range(0, len(text), step))) == (content, calls)
    for place in range(len(text)):
        assert parsed(text, [place]) == (content, calls)


@settings(max_examples=40, deadline=None)
@given(text=st.text(alphabet='<>/tol_ca{}":\\ n', max_size=60), cuts=st.lists(st.integers(0, 60)))
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert parsed(text, cuts) == parsed(text, [])


@pytest.mark.parametrize("length", range(1, len(CALL)))
def test_of_a_reply_cut_short_no_markup_is_told(length: int) -> None:
    content, calls = parsed("Well. " + CALL[:length], list(range(99)), cut=True)
    assert content.rstrip() in ("Well.", "Well. " + CALL[:length])
    assert "{" not in content
    assert all(ARGUMENTS.startswith(arguments) for _, arguments in calls)


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser()
    head = '<tool_call>\n{"name": "f", "arguments": '
    assert [bool(parser.push(piece)) for piece in head] == [False] * len(head)
    named, piece = parser.push('{"a')
    assert isinstance(named, ToolCallDelta)
    assert isinstance(piece, ToolCallDelta)
    assert (named.name, named.arguments, piece.name, piece.arguments) == ("f", "", None, '{"a')
    assert named.call_id == piece.call_id
    assert parser.in_call
