"""Start-up news of the stages: a block that is redrawn on a terminal, lines anywhere else.

Knows stages, what they say they are doing, and counts in that: "loading weights 8/168", or
"loading weights 8192/170000 bytes".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_COUNT = re.compile(r"(?P<what>.*?) (?P<done>\d+)/(?P<total>[1-9]\d*)(?P<unit> bytes)?")
_NOT_DRAWABLE = {"dumb", "unknown"}
_BAR_WIDTH = 32
_REDRAWS_PER_S = 8


class Progress(Protocol):
    """Shows what stages say while they start. Close it before anything else is printed; later news,
    of a stage that starts again, are lines."""

    def __call__(self, stage: str, doing: str) -> None:
        """Take the news that `stage` is `doing` something."""

    def close(self) -> None:
        """Leave the last news standing and the terminal as it was; may be called twice."""


def progress_on(stream: TextIO, write: Callable[[str], None]) -> Progress:
    """A redrawn block if `stream` is a terminal that can do that, otherwise lines for `write`."""
    drawable = stream.isatty() and os.environ.get("TERM") not in _NOT_DRAWABLE
    return Block(stream, Lines(write)) if drawable else Lines(write)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """News with a count in it: "loading weights 8/168"."""

    what: str
    done: int
    total: int
    in_bytes: bool

    @classmethod
    def read(cls, doing: str) -> Self | None:
        """The count in a piece of news, None if there is none."""
        found = _COUNT.fullmatch(doing)
        if found is None:
            return None
        return cls(
            what=found["what"],
            done=int(found["done"]),
            total=int(found["total"]),
            in_bytes=found["unit"] is not None,
        )

    @property
    def percent(self) -> int:
        """How much is done, rounded down."""
        return 100 * self.done // self.total


class Lines:
    """Each piece of news as one line; of a running count, every quarter."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._quarters: dict[tuple[str, str], int] = {}

    def __call__(self, stage: str, doing: str) -> None:
        """Write the news, or nothing if it is a count in a quarter that has been told."""
        count = Count.read(doing)
        if count is None:
            self._write(f"{stage}: {doing}")
            return
        quarter = count.percent // 25
        if quarter > self._quarters.get((stage, count.what), 0):
            self._quarters[stage, count.what] = quarter
            self._write(f"{stage}: {count.what} {count.percent}%")

    def close(self) -> None:
        """Nothing is left to do."""


class Block:
    """A line for each stage with its last news, and a bar where that has a count."""

    def __init__(self, terminal: TextIO, afterwards: Lines) -> None:
        self._terminal = terminal
        self._afterwards = afterwards
        self._news: dict[str, str] = {}
        self._live: Live | None = None
        self._closed = False

    def __call__(self, stage: str, doing: str) -> None:
        """Show the news at the next redraw, or as a line if the block is closed."""
        if self._closed:
            self._afterwards(stage, doing)
            return
        self._news[stage] = doing
        if self._live is None:
            self._live = self._open()

    def close(self) -> None:
        """Draw once more, and stop."""
        self._closed = True
        if self._live is not None:
            self._live.stop()

    def _open(self) -> Live:
        # Only now: the stages are importing torch meanwhile, so this delays nobody.
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._terminal)
        live = Live(console=console, get_renderable=self._table, refresh_per_second=_REDRAWS_PER_S)
        live.start()
        # The second Ctrl-C ends the process on the spot, and must not take the cursor along.
        console.show_cursor(True)
        return live

    def _table(self) -> Table:
        """The block as it is now; called by rich's own thread."""
        from rich.filesize import decimal
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for _ in range(4):
            table.add_column(no_wrap=True)
        for stage, doing in tuple(self._news.items()):
            count = Count.read(doing)
            if count is None:
                table.add_row(stage, doing)
                continue
            total = decimal(count.total) if count.in_bytes else str(count.total)
            bar = ProgressBar(total=count.total, completed=count.done, width=_BAR_WIDTH)
            table.add_row(stage, count.what, bar, f"{count.percent}% of {total}")
        return table
