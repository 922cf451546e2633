"""Stop strings over text pieces and over tokens."""

from __future__ import annotations

import itertools

import pytest

from omni_core.engine.stop import IncrementalText, StopMatcher, StopTracker
from omni_core.errors import RequestError

UTF8_TOKENS = {i: bytes([i]) for i in range(256)}
WORD_TOKENS = {
    300: b"",
    301: b"Hello",
    302: b" wor",
    303: b"ld",
    304: b"END",
    305: b"xEN",
    306: b"D",
}


def decode(ids: list[int]) -> str:
    """A byte-level tokenizer: one id per byte, a few whole words, 300 a skipped special."""
    return b"".join((UTF8_TOKENS | WORD_TOKENS)[i] for i in ids).decode("utf-8", errors="replace")


def decode_stripping(ids: list[int]) -> str:
    """As `decode`, with the leading space of the first token lost (as SentencePiece does)."""
    return decode(ids).removeprefix(" ")


def pieces(text: str, cuts: tuple[int, ...]) -> list[str]:
    edges = (0, *cuts, len(text))
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("one END two", ["END"], "one "),
        ("EEND", ["END"], "E"),
        ("ababac", ["abac"], "ab"),
        ("say ENDING", ["ING", "END"], "say "),
        ("abcd", ["bcd", "bc"], "a"),
        ("xabc", ["c", "abc"], "x"),
        ("stop\n\nhere", ["\n\n"], "stop"),
    ],
)
def test_any_cutting_of_the_text_stops_at_the_same_place(
    text: str, stops: list[str], shown: str
) -> None:
    for count in range(4):
        for cuts in itertools.combinations(range(1, len(text)), count):
            matcher = StopMatcher(stops)
            states = [matcher.push(piece) for piece in pieces(text, cuts)]
            assert states[-1].stopped
            assert text[: states[-1].safe] == shown
            assert all(state.safe <= len(shown) for state in states)


def test_text_that_may_become_a_stop_string_is_held_and_released_when_it_does_not() -> None:
    matcher = StopMatcher(["END", "Nil"])
    safe = [matcher.push(piece).safe for piece in ("a", "E", "N", "x", "N", "il")]
    assert safe == [1, 1, 1, 4, 4, 4]
    assert matcher.push("more").stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        StopMatcher(["ok", ""])
    assert caught.value.param == "stop"


@pytest.mark.parametrize("text", ["naïve 語 🎧 end", "\ufffd ok", "語語"])
def test_incremental_text_never_splits_a_character(text: str) -> None:
    stream = IncrementalText(decode)
    parts = [stream.push(byte) for byte in text.encode()]
    assert "".join(parts) == text
    assert all(part == "" or part in text for part in parts)


def test_incremental_text_keeps_spaces_a_tokenizer_strips_at_the_start() -> None:
    stream = IncrementalText(decode_stripping)
    parts = [stream.push(token) for token in (301, 302, 300, 302, 303)]
    assert parts == ["Hello", " wor", "", " wor", "ld"]


def run(stops: list[str], tokens: list[int]) -> tuple[list[tuple[int, ...]], bool, tuple[int, ...]]:
    tracker = StopTracker(stops, decode)
    released, stopped = [], False
    for token in tokens:
        more, stopped = tracker.push(token)
        released.append(more)
    return released, stopped, tracker.flush()


def test_tokens_of_a_stop_string_are_never_released() -> None:
    released, stopped, _ = run(["END"], [301, ord("E"), ord("N"), ord("D")])
    assert (released, stopped) == ([(301,), (), (), ()], True)


def test_tokens_are_released_once_the_stop_string_cannot_come_any_more() -> None:
    released, stopped, rest = run(["END"], [301, ord("E"), ord("N"), ord("x"), ord("E")])
    assert (released, stopped) == ([(301,), (), (), (ord("E"), ord("N"), ord("x")), ()], False)
    assert rest == (ord("E"),)


def test_a_token_that_only_ends_in_a_stop_string_is_not_released() -> None:
    released, stopped, _ = run(["END"], [301, 305, 306])
    assert (released, stopped) == ([(301,), (), ()], True)


def test_bytes_of_an_unfinished_character_are_held_with_it() -> None:
    one, two = "é".encode()
    released, _, _ = run(["END"], [301, one, two, 300])
    assert released == [(301,), (), (one, two), (300,)]
