"""Start-up news: lines for a log, a redrawn block on a terminal. Terminals here are real ptys."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omni_server.cli.progress import Block, Lines, progress_on

CURSOR_UP = "\x1b[1A"
SHOW_CURSOR = "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TOTAL_BYTES = 61_000_000_000


class Screen:
    """The master side of a pty: what a person would be shown."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.shown = ""

    def until(self, text: str) -> str:
        """All that was shown, once `text` is there."""
        while text not in self.shown:
            self.shown += os.read(self._master, 65536).decode()
        return self.shown

    def last_block(self) -> list[str]:
        """The lines of the last redraw, as text."""
        _, _, block = self.shown.rpartition(CURSOR_UP)
        lines = ESCAPE.sub("", block).replace("\r", "").splitlines()
        return [" ".join(line.split()) for line in lines if line.strip()]


@contextmanager
def terminal() -> Iterator[tuple[io.TextIOWrapper, Screen]]:
    """A terminal to write to and the screen behind it."""
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as stream, os.fdopen(master, "rb", buffering=0):
        yield stream, Screen(master)


@pytest.fixture(autouse=True)
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_lines_thin_counts_to_quarters() -> None:
    lines: list[str] = []
    progress = Lines(lines.append)
    progress("thinker", "loading tokenizer")
    for n in range(0, 165, 8):
        progress("thinker", f"loading weights {n}/164")
    progress("eye", "loading weights 30500000000/61000000000 bytes")
    progress("thinker", "ready")
    assert lines == [
        "thinker: loading tokenizer",
        "thinker: loading weights 29%",
        "thinker: loading weights 53%",
        "thinker: loading weights 78%",
        "eye: loading weights 50%",
        "thinker: ready",
    ]


def test_a_terminal_shows_one_block_with_a_line_for_each_stage() -> None:
    with terminal() as (stream, screen):
        progress = progress_on(stream, lambda line: None)
        progress("thinker", f"loading weights {TOTAL_BYTES // 4}/{TOTAL_BYTES} bytes")
        screen.until("25% of 61.0 GB")
        progress("talker_ar", "loading weights 84/168")
        progress("decode", "ready")
        screen.until("50% of 168")
        progress("thinker", f"loading weights {TOTAL_BYTES}/{TOTAL_BYTES} bytes")
        progress.close()
        progress.close()
        screen.until("100% of 61.0 GB")
        screen.until(SHOW_CURSOR)
        bar = r"[━╸╺─]+"
        patterns = [
            rf"thinker loading weights {bar} 100% of 61\.0 GB",
            rf"talker_ar loading weights {bar} 50% of 168",
            "decode ready",
        ]
        found = screen.last_block()
        assert len(found) == len(patterns), found
        for pattern, line in zip(patterns, found, strict=True):
            assert re.fullmatch(pattern, line), line


def test_a_stage_that_starts_again_after_the_block_is_told_in_lines() -> None:
    lines: list[str] = []
    with terminal() as (stream, screen):
        progress = progress_on(stream, lines.append)
        progress("thinker", "ready")
        assert lines == []
        progress.close()
        progress("thinker", "loading weights 84/168")
        progress("thinker", "ready")
        assert lines == ["thinker: loading weights 50%", "thinker: ready"]
        assert "84" not in screen.until("ready")


def test_the_cursor_stays_while_the_block_is_redrawn() -> None:
    """Ctrl-C twice ends the process without a last word."""
    with terminal() as (stream, screen):
        progress = progress_on(stream, lambda line: None)
        progress("thinker", "importing")
        screen.until("importing")
        hidden, _, _ = screen.until(SHOW_CURSOR).rpartition(SHOW_CURSOR)
        assert "\x1b[?25l" in hidden
        progress.close()


def test_no_block_without_a_terminal_that_can_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_on(io.StringIO(), lambda line: None), Lines)
    with terminal() as (stream, _):
        assert isinstance(progress_on(stream, lambda line: None), Block)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(progress_on(stream, lambda line: None), Lines)
