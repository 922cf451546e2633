"""The Talker's front end beside what the authors' made of the same texts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_ming.speech_text.cutting import MAX_LENGTH, cut
from omni_ming.speech_text.front_end import FrontEnd, has_speech, utterances
from omni_ming.speech_text.numbers import write_numbers
from omni_ming.speech_text.scripts import is_chinese, is_speakable, semantic_length

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "text.json").read_text(encoding="utf-8")
)
TEXTS = list(enumerate(GOLDEN["texts"]))


@pytest.mark.parametrize(("index", "text"), TEXTS)
def test_utterances(index: int, text: str) -> None:
    expected = [tuple(call) for call in GOLDEN["segments"][index]["calls"]]
    made = utterances(text)
    assert [(one["text"], one["continues"]) for one in made] == expected


@pytest.mark.parametrize(("index", "text"), TEXTS)
def test_cuts(index: int, text: str) -> None:
    assert cut(text) == GOLDEN["cut50"][index]["fragments"]
    assert cut(text, 10) == GOLDEN["cut10"][index]


@pytest.mark.parametrize(("index", "text"), TEXTS)
def test_kinds_of_text(index: int, text: str) -> None:
    assert is_chinese(text) == GOLDEN["is_chinese"][index]
    assert semantic_length(text) == GOLDEN["semantic_len"][index]


@pytest.mark.parametrize(("text", "words"), GOLDEN["numbers"].items())
def test_numbers(text: str, words: str) -> None:
    assert write_numbers(text) == words


SIGNS = [*"字好，。！？；,.!?; \n0123456789abXY%$£/-é😀…", "word ", "3.14", "U.S.A.", "kHz"]
PARTS = st.lists(st.sampled_from(SIGNS), max_size=200).map("".join)


@settings(max_examples=300, deadline=None)
@given(PARTS, st.lists(st.integers(1, 40), max_size=20))
def test_how_a_text_came_changes_nothing(text: str, sizes: list[int]) -> None:
    front_end, made, rest = FrontEnd(), [], text
    for size in sizes:
        made += front_end.push(rest[:size])
        rest = rest[size:]
    made += [*front_end.push(rest), *front_end.flush()]
    assert made == utterances(text)
    assert has_speech(text) == bool(made)
    assert all(is_speakable(one["text"]) for one in made)


@settings(max_examples=300, deadline=None)
@given(PARTS)
def test_no_letter_is_lost_and_no_utterance_is_long(text: str) -> None:
    made = [one["text"] for one in utterances(text)]
    chinese = [c for c in text if "\u4e00" <= c <= "\u9fff"]
    assert [c for one in made for c in one if "\u4e00" <= c <= "\u9fff"] == chinese
    pieces = cut(text)
    assert all(semantic_length(piece) <= MAX_LENGTH for piece in pieces)
    letters = [c for c in text if c.isalpha()]
    assert [c for piece in pieces for c in piece if c.isalpha()] == letters


def test_text_without_marks_is_spoken_before_its_end() -> None:
    for unit in ("字", "word "):
        front_end = FrontEnd()
        assert [bool(front_end.push(unit)) for _ in range(120)].count(True) == 2
        assert len(front_end.flush()) == 1


@pytest.mark.parametrize("unit", ["สวัสดี", "привет ", "こんにちは"])
def test_other_scripts_are_spoken_before_their_end(unit: str) -> None:
    front_end, text = FrontEnd(), unit * 200
    made = [one["text"] for character in text for one in front_end.push(character)]
    assert len(made) >= 3
    assert max(map(len, made)) <= 400  # marks above letters come beside
    rest = [one["text"] for one in front_end.flush()]
    assert "".join([*made, *rest]).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        ",".join(map(str, range(1, 601))),
        " ".join(map(str, range(1, 601))),
        "7" * 2_000,
        "3" + "😀" * 2_000,
        "1." * 2_000,
        "a" * 5_000,
        "=" * 3_000 + "a",
    ],
    ids=lambda text: text[:8],
)
def test_what_has_no_length_for_the_authors_is_spoken_in_pieces(text: str) -> None:
    made = [one["text"] for one in utterances(text)]
    assert made
    assert max(map(len, made)) <= 800
    letters = [c for c in text if c.isalpha()]
    assert not letters or [c for one in made for c in one if c.isalpha()] == letters


def test_lists_of_numbers_keep_their_numbers() -> None:
    made = " ".join(one["text"] for one in utterances(",".join(map(str, range(95, 131)))))
    heard = [word.strip() for word in made.split(",")]
    assert heard[:2] == ["ninety-five", "ninety-six"]
    assert heard[-1] == "one hundred thirty"
    assert len(heard) == 36


@pytest.mark.parametrize("text", ["1" * 20_000, "1." * 10_000 + "x", "a" * 20_000, "£1" * 10_000])
def test_numbers_take_time_in_proportion(text: str) -> None:
    began = time.process_time()
    write_numbers(text)
    assert time.process_time() - began < 3  # "1…" took 6 s while it grew with the square


@pytest.mark.parametrize("text", ["", "   ", "...", "。！？，", "😀😀😀", "\n\n\n", "--- *** ###"])
def test_nothing_to_say(text: str) -> None:
    assert utterances(text) == []
    assert not has_speech(text)


def test_speech_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    push = FrontEnd.push
    monkeypatch.setattr(FrontEnd, "push", lambda self, text: read.append(text) or push(self, text))
    assert has_speech("Hello there, world. " + "word " * 4_000)
    assert "".join(read) == "Hello there, world."


@pytest.mark.parametrize("text", ["Привет, мир", "こんにちは", "0", "é"])
def test_other_scripts_are_spoken(text: str) -> None:
    assert [one["text"] for one in utterances(text)] == ["zero" if text == "0" else text]


@pytest.mark.parametrize(
    "text",
    ["1/0", "9" * 200, "1/" + "9" * 50, "$.", "-", "1,,,,2", "v1.2.3", "5 \u017f", "5 \u212ag"],
)
def test_strange_numbers_are_read_somehow(text: str) -> None:
    assert not any(c.isdigit() for c in write_numbers(text))
