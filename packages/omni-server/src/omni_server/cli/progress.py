"""Start-up news, thinned to what a person reads.

Knows lines of text and counts in them ("loading weights 8/168").
"""

from __future__ import annotations

import re
from collections.abc import Callable

_COUNT = re.compile(r"(?P<what>.*?) (?P<done>\d+)/(?P<total>[1-9]\d*)")


class Progress:
    """Passes each piece of news on as one line; of a running count, every quarter."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._quarters: dict[tuple[str, str], int] = {}

    def __call__(self, stage: str, doing: str) -> None:
        """Take the news that `stage` is `doing` something."""
        count = _COUNT.fullmatch(doing)
        if count is None:
            self._write(f"{stage}: {doing}")
            return
        what, done, total = count["what"], int(count["done"]), int(count["total"])
        quarter = 4 * done // total
        if quarter > self._quarters.get((stage, what), 0):
            self._quarters[stage, what] = quarter
            self._write(f"{stage}: {what} {100 * done // total}%")
