"""Reasoning is told from content by its tags, however the text is cut."""

from __future__ import annotations

import itertools

import pytest

from omni_core.text.reasoning import ReasoningSplitter, left_open
from omni_core.types import Channel


def split(pieces: list[str], *, opened: bool = False) -> dict[Channel, str]:
    splitter = ReasoningSplitter(opened=opened)
    found: dict[Channel, str] = {"content": "", "reasoning": ""}
    for piece in pieces:
        for channel, text in splitter.push(piece):
            found[channel] += text
    for channel, text in splitter.flush():
        found[channel] += text
    return found


CASES = [
    ("<think>\nwhy</think>\n\nbecause", False, "why", "because"),
    ("why</think>because", True, "why", "because"),
    ("\n\nwhy\n</think>\nbecause", True, "why\n", "because"),
    ("<think>why</think>because", True, "why", "because"),
    ("<think></think>because", False, "", "because"),
    ("no thought", False, "", "no thought"),
    ("so <think>why</think> this", False, "why", "so  this"),
    ("only a thought", True, "only a thought", ""),
    ("1 < 2 <thin> </thi", False, "", "1 < 2 <thin> </thi"),
    ("a < b </thinker </think>c", True, "a < b </thinker ", "c"),
    ("stray </think> tag", False, "", "stray </think> tag"),
    ("cut </thin", True, "cut </thin", ""),
]


@pytest.mark.parametrize(("text", "opened", "reasoning", "content"), CASES)
def test_every_cut_gives_the_same(text: str, opened: bool, reasoning: str, content: str) -> None:
    expected = {"reasoning": reasoning, "content": content}
    assert split([text], opened=opened) == expected
    assert split(list(text), opened=opened) == expected
    for low, high in itertools.combinations(range(len(text)), 2):
        assert split([text[:low], text[low:high], text[high:]], opened=opened) == expected


def test_text_is_held_only_while_it_may_become_a_tag() -> None:
    splitter = ReasoningSplitter(opened=False)
    assert splitter.push("a <th") == [("content", "a ")]
    assert splitter.push("e") == [("content", "<the")]


@pytest.mark.parametrize(
    ("head", "opened"),
    [
        ("assistant\n", False),
        ("assistant\n<think>\n", True),
        ("assistant\n<think>\n\n</think>\n\n", False),
    ],
)
def test_the_head_of_the_reply_says_whether_a_thought_is_open(head: str, opened: bool) -> None:
    assert left_open(head) == opened
